//! Which tests run, by environment variables.
//!
//! | variable | effect |
//! | --- | --- |
//! | `PACKETLOOM_SWEEPS=1` | long sweeps run, too: large inputs, many seeds, every device of the machine |
//! | `PACKETLOOM_CORPUS=FOLDER` | tests with real captures and rule sets run; every file that they name has to be there |
//! | `PACKETLOOM_COLLECTORS=1` | tests with nfcapd, nfacctd and openssl fail where one is not installed; otherwise they are skipped there |
//! | `PACKETLOOM_TSHARK=1` | tests that compare with tshark, or with the libpcap that it brings, fail where it is not installed; otherwise they are skipped there |
//! | `PACKETLOOM_PYARROW=1` | tests that read Parquet files with pyarrow and DuckDB fail where `python3` has them not; otherwise they are skipped there |
//! | `PACKETLOOM_HYPERSCAN=1` | tests that compare with Hyperscan fail where `libhs.so.5` is not installed; otherwise they are skipped there |
//! | `PACKETLOOM_VALGRIND=1` | tests that build C programs by clang or with pkg-config, or run them under valgrind, fail where one is not installed; otherwise they are skipped there |
//! | `PACKETLOOM_LIVE=1` | tests in network namespaces fail where they may not make them; otherwise they are skipped there |
//! | `PACKETLOOM_TEST_DEVICES=ID,…` | tests on devices run on these alone; each has to be there |
//!
//! A test that does not run says so on standard error (`cargo test -- --nocapture`).

pub mod collector;
#[cfg(target_os = "linux")]
pub mod ends;
#[cfg(target_os = "linux")]
pub mod net;
#[cfg(target_os = "linux")]
pub mod running;

use std::path::{Path, PathBuf};
use std::process::Command;

use packetloom_device::Id;

/// True where long sweeps run.
pub fn sweeps() -> bool {
    is_set("PACKETLOOM_SWEEPS")
}

/// True where long sweeps run; otherwise says that `what` does not.
pub fn sweep(what: &str) -> bool {
    let runs = sweeps();
    if !runs {
        eprintln!("skipped: {what} (a long sweep: set PACKETLOOM_SWEEPS=1)");
    }
    runs
}

/// `long` where long sweeps run, else `short`: how much of something a test does.
pub fn amount<T>(short: T, long: T) -> T {
    if sweeps() { long } else { short }
}

/// True where tests in network namespaces have to run.
pub fn live() -> bool {
    is_set("PACKETLOOM_LIVE")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// True where a program that receives flow records is in the search path; otherwise says that the test does not run.
///
/// # Panics
///
/// `PACKETLOOM_COLLECTORS` is set, and it is not there.
pub fn has_collector(program: &str) -> bool {
    let found = is_installed(program);
    assert!(
        found || !is_set("PACKETLOOM_COLLECTORS"),
        "PACKETLOOM_COLLECTORS is set, but there is no {program}"
    );
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// True where a program is in the search path.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// True where a tool for C programs (valgrind, clang, pkg-config) can be started; otherwise says that the test does not run.
///
/// # Panics
///
/// `PACKETLOOM_VALGRIND` is set, and it is not there.
pub fn has_c_tool(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(found || !is_set("PACKETLOOM_VALGRIND"), "PACKETLOOM_VALGRIND is set, but there is no {program}");
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// The library that shows a program another clock (Debian's faketime); none where it is not installed, which is said.
///
/// # Panics
///
/// `PACKETLOOM_LIVE` is set, and it is not there.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    let found = folders.map(library).find(|path| path.is_file());
    assert!(found.is_some() || !live(), "PACKETLOOM_LIVE is set, but there is no libfaketime");
    if found.is_none() {
        eprintln!("skipped: faketime is not installed");
    }
    found
}

/// True where `python3` has these modules; otherwise says that the test does not run.
///
/// # Panics
///
/// `PACKETLOOM_PYARROW` is set, and it has not.
pub fn has_python_modules(modules: &[&str]) -> bool {
    let names = modules.join(", ");
    let imports = Command::new("python3").args(["-c", &format!("import {names}")]).output();
    let found = imports.is_ok_and(|output| output.status.success());
    assert!(found || !is_set("PACKETLOOM_PYARROW"), "PACKETLOOM_PYARROW is set, but python3 has no {names}");
    if !found {
        eprintln!("skipped: python3 has no {names}");
    }
    found
}

/// True where tshark, and libpcap with it, has to be installed.
pub fn requires_tshark() -> bool {
    is_set("PACKETLOOM_TSHARK")
}

/// True where tshark can be started; otherwise says that the test does not run.
///
/// # Panics
///
/// `PACKETLOOM_TSHARK` is set, and there is no tshark.
pub fn has_tshark() -> bool {
    let found = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(found || !requires_tshark(), "PACKETLOOM_TSHARK is set, but there is no tshark");
    if !found {
        eprintln!("skipped: tshark is not installed");
    }
    found
}

/// A folder of the test data that are not part of the repository. None without `PACKETLOOM_CORPUS`; the test says then that it does not
/// run.
///
/// # Panics
///
/// `PACKETLOOM_CORPUS` is set, and the folder is not there.
pub fn corpus(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("PACKETLOOM_CORPUS") else {
        eprintln!("skipped: PACKETLOOM_CORPUS is not set");
        return None;
    };
    // Cargo runs tests in the crate's folder; a relative path is meant from the workspace's root.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(root);
    let folder = root.join(folder);
    assert!(folder.is_dir(), "PACKETLOOM_CORPUS is set, but {} is missing", folder.display());
    Some(folder)
}

/// The devices that tests run on: those that `PACKETLOOM_TEST_DEVICES` names; else, where long sweeps run, all of this machine, the host
/// first; else the host alone, which compiles kernels with the C compiler. What is missing is said.
///
/// # Panics
///
/// `PACKETLOOM_TEST_DEVICES` names a device that is not there.
pub fn devices() -> Vec<Id> {
    let (ids, missing) = packetloom_device::list();
    let all: Vec<_> = [Id::Host].into_iter().chain(ids).collect();
    if let Ok(names) = std::env::var("PACKETLOOM_TEST_DEVICES") {
        let of_name = |name: &str| all.iter().find(|id| id.to_string() == name).cloned();
        let named = names.split(',').map(|name| {
            of_name(name).unwrap_or_else(|| {
                let all: Vec<_> = all.iter().map(Id::to_string).collect();
                panic!("PACKETLOOM_TEST_DEVICES names {name:?}; expected some of {}", all.join(", "))
            })
        });
        return named.collect();
    }
    if !sweep("devices other than the host") {
        return vec![Id::Host];
    }
    missing.iter().for_each(|why| eprintln!("skipped: {why}"));
    all
}

/// Those of [`devices`] that are no host: GPUs, and whatever else has a driver.
///
/// # Panics
///
/// As [`devices`].
pub fn accelerators() -> Vec<Id> {
    let all: Vec<_> = devices().into_iter().filter(|id| *id != Id::Host).collect();
    if all.is_empty() {
        eprintln!("skipped: what needs a device other than the host");
    }
    all
}
