//! A watchdog: where a run over interfaces hangs, packets wait for it until somebody ends it.
//!
//! A thread looks whether the run goes on, and tells another process, and systemd if that wants to know (sd_notify(3)). Where nothing is
//! said for too long, the run hangs or the whole process is stopped; then the other process kills it, and the kernel takes over as after any
//! other end. The other process is this command again, with a verb of its own.

use std::io::{PipeWriter, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use packetloom_engine::run::Statistics;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::args::{VERB_OF_WATCHDOG, WatchdogArgs};
use crate::failure::Failure;
use crate::{Done, talk};

/// Looks in a time: a machine that is halted misses one, however long it is.
const LOOKS: u32 = 8;

/// Watches a run until it is dropped.
pub(crate) struct Watchdog {
    systemd: Option<Systemd>,
    /// Dropped where it is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Has a run killed that does not go on for so long, if a time is given.
    pub(crate) fn start(limit: Option<Duration>, statistics: Arc<Statistics>) -> Result<Self, Failure> {
        let fail = |error| Failure::Run(anyhow::anyhow!("cannot start the watchdog: {error}"));
        let systemd = Systemd::find();
        let theirs = systemd.as_ref().and_then(|systemd| systemd.watchdog);
        let Some(shortest) = limit.into_iter().chain(theirs).min() else {
            return Ok(Self { systemd, over: None, thread: None });
        };
        if limit.is_some() && std::process::id() == 1 {
            // No process of a container may kill its first one.
            let why = "--watchdog for the first process of a container, which none of its others can kill; expected an init before it";
            return Err(Failure::Usage(format!("{why} (docker run --init)")));
        }
        let look = shortest / LOOKS;
        let mut other = limit.map(begin).transpose().map_err(fail)?;
        let (over, is_over) = channel();
        let notified = systemd.clone().filter(|systemd| systemd.watchdog.is_some());
        let watch = move || {
            let mut before = None;
            while is_over.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
                let now = statistics.progress();
                // None: it is not to be watched now.
                let goes_on = now.is_none() || now != before;
                before = now;
                if !goes_on {
                    continue;
                }
                if let Some(systemd) = &notified {
                    systemd.say("WATCHDOG=1");
                }
                if other.as_mut().is_some_and(|other| other.write_all(&[1]).is_err()) {
                    other = None;
                    talk::error(
                        "packetloom: warning: the watchdog's process has ended; nobody watches the run\n",
                    );
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(watch).map_err(fail)?;
        Ok(Self { systemd, over: Some(over), thread: Some(thread) })
    }

    /// Tells systemd, if it wants to know, that packets are received.
    pub(crate) fn ready(&self) {
        if let Some(systemd) = &self.systemd {
            systemd.say("READY=1");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(systemd) = &self.systemd {
            systemd.say("STOPPING=1");
        }
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Begins the other process; what it is told by.
fn begin(limit: Duration) -> std::io::Result<PipeWriter> {
    let (reader, writer) = std::io::pipe()?;
    // As it is now, whatever file has its name by now. Signals for the process group are not for it.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("packetloom")
        .arg(VERB_OF_WATCHDOG)
        .arg(std::process::id().to_string())
        .arg(limit.as_millis().to_string());
    let child = command.process_group(0).stdin(reader).stdout(Stdio::null()).spawn()?;
    // It ends after this process, or kills it.
    drop(child);
    Ok(writer)
}

/// What the other process does: kills the one that began it where that says nothing for too long.
pub(crate) fn watch(args: &WatchdogArgs) -> Done {
    let fail = |what: &str, error: &dyn std::fmt::Display| {
        Failure::Run(anyhow::anyhow!("watchdog: cannot {what}: {error}"))
    };
    // Systemd sends them to all processes of a service; the run ends first.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| fail("handle signals", &error))?;
    }
    let process = Pid::from_raw(args.process).ok_or_else(|| fail("watch a process", &args.process))?;
    let handle = pidfd_open(process, PidfdFlags::empty());
    if getppid() != Some(process) {
        // It has ended, and its number may be another's.
        return Ok(());
    }
    let handle = handle.map_err(|error| fail("watch a process", &error))?;
    let limit = Duration::from_millis(args.limit);
    let look = Timespec::try_from(limit / LOOKS).map_err(|error| fail("wait", &error))?;
    let (stdin, mut silent) = (std::io::stdin(), 0);
    while silent < LOOKS {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&look)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(fail("wait", &error)),
            Ok(0) => silent += 1,
            // Nothing: it has ended.
            Ok(_) if rustix::io::read(&stdin, &mut [0; 64]) == Ok(0) => return Ok(()),
            Ok(_) => silent = 0,
        }
    }
    // Also where it is stopped. First of all: nobody may read what is said.
    pidfd_send_signal(&handle, Signal::KILL).map_err(|error| fail("kill the run", &error))?;
    let text = format!("packetloom: the watchdog has killed the run, which did not go on for {limit:?}\n");
    talk::error(&text);
    Ok(())
}

/// Who started this process as a service and wants to know how it is (sd_notify(3)).
#[derive(Clone, Debug)]
struct Systemd {
    socket: Arc<UnixDatagram>,
    address: SocketAddr,
    /// How often it wants to hear that the run goes on.
    watchdog: Option<Duration>,
}

impl Systemd {
    fn find() -> Option<Self> {
        let path = std::env::var("NOTIFY_SOCKET").ok()?;
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_for_us = number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
        let micros = number("WATCHDOG_USEC").filter(|&micros| is_for_us && micros > 0);
        Some(Self {
            socket: Arc::new(UnixDatagram::unbound().ok()?),
            address: address.ok()?,
            watchdog: micros.map(Duration::from_micros),
        })
    }

    /// What it does not get is its matter.
    fn say(&self, text: &str) {
        let _ = self.socket.send_to_addr(text.as_bytes(), &self.address);
    }
}
