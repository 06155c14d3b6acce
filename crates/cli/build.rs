//! Tells a release build from which commit it is, for the results of benchmarks. Figures of a debug build mean nothing, so those have
//! none, and are not built again for each commit.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PACKETLOOM_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(commit) = env::var("PACKETLOOM_COMMIT") {
        // Said by whoever builds from sources without their history.
        println!("cargo::rustc-env=PACKETLOOM_COMMIT={commit}");
    } else if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed=..");
        if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
            // The commit may move while no source changes.
            for file in ["HEAD", "index"] {
                if let Some(path) = git(&["rev-parse", "--git-path", file]) {
                    println!("cargo::rerun-if-changed={path}");
                }
            }
            let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
            let dirty = if changes.is_none_or(|changes| changes.is_empty()) { "" } else { "-dirty" };
            println!("cargo::rustc-env=PACKETLOOM_COMMIT={commit}{dirty}");
        }
    }
}

/// What git says, where it is there and knows these sources.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
