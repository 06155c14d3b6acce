//! Programs of others that run beside a test, and receive datagrams.

#![allow(missing_docs, reason = "names say it")]

use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A collector's process, which ends with it, and so do those that it has started.
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().expect("started"))
    }

    /// nfcapd at a port of this machine, which writes into a folder; what it says goes to a file.
    pub fn nfcapd(port: u16, folder: &Path, log: &Path) -> Self {
        let mut nfcapd = Command::new("nfcapd");
        nfcapd.arg("-w").arg(folder).args(["-b", "127.0.0.1", "-t", "3600", "-B", "4000000"]);
        nfcapd.args(["-p", &port.to_string()]).stdout(Stdio::null());
        let running = Self::start(nfcapd.stderr(fs::File::create(log).expect("a file")));
        wait_for(port);
        running
    }

    /// Has it write what it holds, and waits until it has ended.
    pub fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("told");
        self.0.wait().expect("ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A port that nobody has.
pub fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// Waits until somebody receives datagrams at a port.
pub fn wait_for(port: u16) {
    let begun = Instant::now();
    let address = format!("0100007F:{port:04X}");
    while !fs::read_to_string("/proc/net/udp").expect("sockets").contains(&address) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens at {port}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until whoever receives at a port has taken everything.
pub fn wait_until_read(port: u16) {
    let begun = Instant::now();
    let address = format!("0100007F:{port:04X}");
    loop {
        let sockets = fs::read_to_string("/proc/net/udp").expect("sockets");
        let socket = sockets.lines().find(|line| line.contains(&address)).expect("it is there");
        // Local address, remote address, state, bytes to be sent and to be read.
        let queues = socket.split_whitespace().nth(4).expect("queues");
        if queues.ends_with(":00000000") {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{socket}");
        thread::sleep(Duration::from_millis(20));
    }
}
