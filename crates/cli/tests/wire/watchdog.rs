//! A run that hangs is killed, and what it forwarded goes where it is to go then; one that waits, or works, is not.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{is_answered, ping};
use packetloom_testing::net::{Net, SERVER, run};
use rustix::process::{Pid, Signal, kill_process};

use crate::product::{BACKENDS, Product};
use crate::support::{self, packetloom, stderr, succeed};

const CHAIN: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"counter\"\n";
const PERMIT: &str = "permit any from any to any\n";
const PATIENCE: Duration = Duration::from_secs(60);
/// Several times as long as a watchdog of one second waits.
const LONG: Duration = Duration::from_secs(4);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_is_stopped_is_killed() {
    for backend in BACKENDS {
        let Some(net) = Net::new() else { return };
        let files = [("rules", PERMIT)];
        let arguments = "--watchdog 1s --on-exit open --workers 2";
        let mut product = Product::inline_by(backend, &net.product, CHAIN, &files, arguments);
        ping(&net, SERVER[0], 2).expect("answered");
        product.signal(Signal::STOP);
        product.wait_until_stopped();
        let begin = Instant::now();
        product.wait_for("packetloom: the watchdog has killed the run, which did not go on for 1s");
        assert!(
            begin.elapsed() > Duration::from_millis(800),
            "it is not killed early: {:?}",
            begin.elapsed()
        );
        assert_eq!(product.wait_until_gone(), Some(Signal::KILL.as_raw()));
        ping(&net, SERVER[0], 2).expect("answered by the kernel");
    }
}

/// It cannot say anything: a run of which nobody reads what it says waits.
#[test]
fn a_run_that_hangs_is_killed() {
    let Some(net) = Net::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("chain.toml"), CHAIN).expect("written");
    std::fs::write(folder.path().join("rules"), PERMIT).expect("written");
    let (mut said, mut writer) = std::io::pipe().expect("a pipe");
    // There is room for 4 KiB more.
    writer.write_all(&[b'.'; 60 << 10]).expect("written");
    let mut command = packetloom();
    let arguments = "run chain.toml -i pa -i pb --inline --on-exit open --watchdog 1s";
    command.current_dir(folder.path()).args(arguments.split(' ')).stdout(Stdio::null()).stderr(writer);
    let mut child = net.product.run(|| command.spawn().expect("started"));
    drop(command);
    let _killed = Killed(Pid::from_child(&child));
    wait_until("nothing is forwarded", || is_answered(&net, SERVER[0]));
    // What the link does is said until the pipe is full.
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        assert!(begin.elapsed() < PATIENCE, "it goes on");
        net.server.ip("link set s0 down").expect("down");
        net.server.ip("link set s0 up").expect("up");
    }
    let status = child.wait().expect("ended");
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the watchdog ends, too");
    assert!(rest.contains("the watchdog has killed the run"), "{rest}");
    ping(&net, SERVER[0], 2).expect("answered by the kernel");
}

/// However a test ends.
struct Killed(Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_run_that_waits_or_works_is_not_killed() {
    for (backend, workers) in [("af_packet", 1), ("af_xdp", 2)] {
        let Some(net) = Net::new() else { return };
        let folder = tempfile::tempdir().expect("a folder");
        // Nobody reads what passes.
        let (state, stuck) = (folder.path().join("state"), folder.path().join("stuck"));
        run("mkfifo", stuck.to_str().expect("a path")).expect("made");
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let reader = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&stuck).expect("opened");
        let (state, stuck) = (state.display(), stuck.display());
        let arguments =
            format!("--watchdog 1s --workers {workers} -w {stuck} --save-state {state} --save-every 20ms");
        let mut product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        // Nothing comes.
        thread::sleep(LONG);
        // Rules are read that take longer than the watchdog waits, or two of them.
        let mut generate = packetloom();
        generate.args(["generate", "rules", "--rules", "400000", "--format", "native", "-o"]);
        succeed(generate.arg(product.at("many")));
        let many = std::fs::read_to_string(product.at("many")).expect("rules");
        std::fs::write(product.at("rules"), format!("{PERMIT}{many}")).expect("written");
        product.forget();
        let begin = Instant::now();
        product.signal(Signal::HUP);
        while begin.elapsed() < LONG || !product.has_said("read again") {
            assert!(begin.elapsed() < 10 * PATIENCE, "not read");
            ping(&net, SERVER[0], 1).expect("answered");
        }
        assert!(!product.has_said("watchdog"), "{:#?}", product.said);
        drop(reader);
        product.signal(Signal::TERM);
        let status = product.wait_until_gone();
        assert_eq!(status, None, "{:#?}", product.said);
    }
}

/// However packets are judged, a run without any goes on.
#[test]
fn a_run_on_a_device_that_waits_is_not_killed() {
    for device in ["host", "oracle"] {
        let Some(net) = Net::new() else { return };
        let chain = "[flows.few]\nby = \"connection\"\nmax_flows = 1000\n[[chain]]\nnf = \"counter\"\nflows = \"few\"\n";
        let arguments = format!("--watchdog 2500ms --device {device}");
        let mut product = Product::inline(&net.product, chain, &[], &arguments);
        product.wait_until_ready(&net);
        ping(&net, SERVER[0], 2).expect("answered");
        thread::sleep(LONG);
        ping(&net, SERVER[0], 2).expect("answered");
        product.stop();
    }
}

/// What a run tells systemd: that it is ready, that it goes on, and that it ends.
#[test]
fn systemd_is_told() {
    let Some(net) = Net::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("chain.toml"), CHAIN).expect("written");
    std::fs::write(folder.path().join("rules"), PERMIT).expect("written");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let begin = || -> Child {
        let mut command = packetloom();
        command.current_dir(folder.path()).args("run chain.toml -i pa -i pb --inline".split(' '));
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "800000").stderr(Stdio::piped());
        net.product.run(|| command.spawn().expect("started"))
    };
    let next = || {
        let mut text = [0; 99];
        let len = socket.recv(&mut text).expect("told");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let child = begin();
    let process = Pid::from_child(&child);
    let _killed = Killed(process);
    // It goes on before it is ready, and afterwards.
    wait_until("not ready", || next() == "READY=1");
    assert_eq!((next(), next(), next()), ("WATCHDOG=1".into(), "WATCHDOG=1".into(), "WATCHDOG=1".into()));
    // One that is stopped says nothing, so systemd would kill it.
    kill_process(process, Signal::STOP).expect("it is there");
    let silence = Duration::from_millis(800);
    socket.set_read_timeout(Some(silence)).expect("set");
    let mut text = [0; 99];
    wait_until("it goes on", || socket.recv(&mut text).is_err());
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    kill_process(process, Signal::CONT).expect("it is there");
    assert_eq!(next(), "WATCHDOG=1");
    kill_process(process, Signal::TERM).expect("it is there");
    wait_until("it does not say that it ends", || next() == "STOPPING=1");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn times_that_are_too_short_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules"), PERMIT).expect("written");
    let write = |lines: &str| {
        std::fs::write(folder.path().join("chain.toml"), format!("{CHAIN}[run]\n{lines}\n"))
            .expect("written");
    };
    let refused = |arguments: &str, code: i32, expected: &str| {
        let mut command = packetloom();
        let output = support::run(command.current_dir(folder.path()).args(arguments.split(' ')));
        let text = stderr(&output);
        assert!(output.status.code() == Some(code) && text.contains(expected), "{text}");
    };
    write("watchdog = \"10ms\"");
    refused("check chain.toml", 78, "watchdog is 10ms; expected 500ms or more, or 0 for never");
    write("watchdog = 2");
    refused("check chain.toml", 78, "chain.toml:7: ");
    write("");
    refused("run chain.toml -i a --watchdog 10ms", 2, "expected 500ms or more");
    refused("run chain.toml -i a --watchdog soon", 2, "expected a time such as");
    refused(
        "run chain.toml -i a --watchdog 2s --device auto",
        2,
        "watchdog 2s, and a device that may be away for 2s; expected a longer time than device_timeout",
    );
    // By its own verb it watches nobody but the process that begins it.
    refused("watch-run 0 1000", 1, "watchdog: cannot watch a process");
    let mut command = packetloom();
    succeed(command.args(["watch-run", "1", "1000"]).stdin(Stdio::null()));
}
