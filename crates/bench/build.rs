//! With the feature `dpdk`: finds DPDK and compiles the plain functions over it. Without: nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk::link();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    /// What rte_acl needs, in an order in which a linker finds it. Of all of DPDK that is enough.
    const LIBRARIES: [&str; 4] = ["rte_acl", "rte_eal", "rte_kvargs", "rte_telemetry"];
    /// What those need beyond the C library, where they are linked statically.
    const SYSTEM: [&str; 3] = ["numa", "bsd", "md"];

    pub(super) fn link() {
        println!("cargo::rerun-if-changed=src/peer/shim.c");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        pkg_config("--atleast-version=22.11");
        let mut shim = cc::Build::new();
        shim.file("src/peer/shim.c").std("gnu11");
        for flag in pkg_config("--cflags").split_ascii_whitespace() {
            shim.flag(flag);
        }
        shim.compile("packetloom_dpdk");

        println!("cargo::rustc-link-search=native={}", pkg_config("--variable=libdir").trim());
        let is_static = cfg!(feature = "dpdk-static");
        let kind = if is_static { "static:-bundle" } else { "dylib" };
        for library in LIBRARIES.iter().chain(is_static.then_some(&SYSTEM).into_iter().flatten()) {
            println!("cargo::rustc-link-lib={kind}={library}");
        }
    }

    /// What `pkg-config` says of DPDK.
    fn pkg_config(question: &str) -> String {
        const EXPECTED: &str = "expected DPDK 22.11 or later, on Debian from libdpdk-dev and pkg-config";
        let output = Command::new("pkg-config").args([question, "libdpdk"]).output();
        let output = output.unwrap_or_else(|error| panic!("pkg-config: {error}; {EXPECTED}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pkg-config {question} libdpdk: {complaint}; {EXPECTED}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
