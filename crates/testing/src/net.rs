//! Network namespaces that a test makes for itself and that go when it ends, however it ends.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Addresses of the client.
pub const CLIENT: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// Addresses of the server.
pub const SERVER: [&str; 2] = ["10.9.0.2", "fd09::2"];

/// Where `ip` keeps namespaces.
const NAMES: &str = "/var/run/netns";
/// What the names of all namespaces begin with, before the number of the process that made them.
const PREFIX: &str = "packetloom-test-";

/// Runs `ip` with these words.
pub fn ip(words: &str) -> Result<(), String> {
    run("ip", words)
}

/// Runs a program with these words.
pub fn run(program: &str, words: &str) -> Result<(), String> {
    let output = Command::new(program).args(words.split_whitespace()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program} {words}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Moves the calling thread into a namespace.
fn enter(name: &str) {
    let file = File::open(format!("{NAMES}/{name}")).expect("the namespace");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    fn new(role: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}-{role}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"))?;
        let namespace = Self(name);
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` in it.
    pub fn ip(&self, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.0))
    }

    /// Runs something in it, in a thread of its own.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.0);
                run()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread in it.
    pub fn spawn<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let name = self.0.clone();
        thread::spawn(move || {
            enter(&name);
            run()
        })
    }

    /// Writes a setting of the network (`/proc/sys/net`).
    pub fn set(&self, setting: &str, value: &str) {
        self.run(|| fs::write(format!("/proc/sys/net/{setting}"), value).expect("written"));
    }

    /// What `ip` says about an interface in it.
    pub fn show(&self, interface: &str) -> String {
        let output = Command::new("ip").args(["-n", &self.0, "-d", "-o", "link", "show", interface]).output();
        String::from_utf8(output.expect("ip").stdout).expect("text")
    }

    /// The number of an interface in it.
    pub fn index(&self, interface: &str) -> u32 {
        let text = self.show(interface);
        text.split(':').next().and_then(|index| index.parse().ok()).expect("a number")
    }

    /// The MAC address of an interface in it.
    pub fn mac(&self, interface: &str) -> [u8; 6] {
        let text = self.show(interface);
        let text = text.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
        let text = text.expect("an address");
        let mut mac = [0; 6];
        for (byte, text) in mac.iter_mut().zip(text.split(':')) {
            *byte = u8::from_str_radix(text, 16).expect("hexadecimal");
        }
        mac
    }

    /// Runs a program in it.
    pub fn exec(&self, words: &str) -> Result<(), String> {
        ip(&format!("netns exec {} {words}", self.0))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.0));
    }
}

/// Removes what processes that were killed have left behind.
fn remove_stale() {
    let Ok(names) = fs::read_dir(NAMES) else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A client and a server with the product between them: c0 - pa (product) pb - s0. All are in one subnet.
#[derive(Debug)]
pub struct Net {
    /// Has `c0`.
    pub client: Namespace,
    /// Has `pa` and `pb`.
    pub product: Namespace,
    /// Has `s0`.
    pub server: Namespace,
    _turn: Turn,
}

/// Who has a network at the same time in this process: whoever floods has it alone, since queues of the kernel that are full drop frames of others, too.
static TURNS: RwLock<()> = RwLock::new(());

#[derive(Debug)]
enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Turn {
    fn shared() -> Self {
        Self::Shared { _guard: TURNS.read().unwrap_or_else(PoisonError::into_inner) }
    }

    fn alone() -> Self {
        Self::Alone { _guard: TURNS.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl Net {
    /// `None`, and a word about it, where namespaces may not be made; with `PACKETLOOM_LIVE=1` that is a failure.
    pub fn new() -> Option<Self> {
        Self::of_turn(Turn::shared)
    }

    /// The same for a test that floods, or spins: no other one of this process has a network meanwhile.
    pub fn alone() -> Option<Self> {
        Self::of_turn(Turn::alone)
    }

    fn of_turn(turn: fn() -> Turn) -> Option<Self> {
        static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
        let why_not = WHY_NOT.get_or_init(|| Self::build(turn()).err());
        match why_not {
            None => Some(Self::build(turn()).expect("a second network")),
            Some(reason) if crate::live() => {
                panic!("PACKETLOOM_LIVE=1, but network namespaces cannot be made: {reason}")
            }
            Some(reason) => {
                eprintln!("skipped: network namespaces cannot be made here: {reason}");
                None
            }
        }
    }

    fn build(turn: Turn) -> Result<Self, String> {
        // What tests use beside ip.
        run("ping", "-V")?;
        run("ethtool", "--version")?;
        remove_stale();
        let net = Self {
            client: Namespace::new("client")?,
            product: Namespace::new("product")?,
            server: Namespace::new("server")?,
            _turn: turn,
        };
        net.connect_a()?;
        net.connect_b()?;
        Ok(net)
    }

    /// Makes the link between client and product.
    pub fn connect_a(&self) -> Result<(), String> {
        self.connect(&self.client, "c0", "pa", CLIENT)
    }

    fn connect_b(&self) -> Result<(), String> {
        self.connect(&self.server, "s0", "pb", SERVER)
    }

    fn connect(&self, end: &Namespace, name: &str, port: &str, addresses: [&str; 2]) -> Result<(), String> {
        let product = &self.product.0;
        ip(&format!("link add {name} netns {} type veth peer name {port} netns {product}", end.0))?;
        // The product's ports have no addresses and say nothing themselves.
        self.product.set(&format!("ipv6/conf/{port}/disable_ipv6"), "1");
        let [v4, v6] = addresses;
        end.ip(&format!("addr add {v4}/24 dev {name}"))?;
        end.ip(&format!("addr add {v6}/64 dev {name} nodad"))?;
        end.ip(&format!("link set {name} up"))?;
        self.product.ip(&format!("link set {port} up"))
    }
}
