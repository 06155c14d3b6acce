//! The control socket of a run: one line of JSON with a command comes in, one line with the answer goes out.
//!
//! A thread of its own looks after the socket and its clients. It asks the run by [`Control`], which answers between two batches, and waits for
//! nobody: a client has at most one command on its way and one answer to be read, and one that stops in the middle of either is let go of.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packetloom_engine::Outcome;
use packetloom_engine::run::{
    Control, FlowOrder, FlowQuery, FlowRemoval, FunctionName, Listed, MOST_LISTED, Removed, Request,
    RuleChange, RulesChanged,
};
use packetloom_filter::FlowFilter;
use packetloom_io::input::{Stop, is_standard};
use packetloom_io::plain;
use packetloom_io::port::Link;
use packetloom_nf::connections::Phase;
use packetloom_nf::flows::{FlowEnds, Selection};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Clients at a time; a further one takes the place of the one that has been silent for the longest time.
const CLIENTS: usize = 16;
/// What answers of lists say.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Bytes of a command's line at most, with its end: room for some thousand rules.
pub(crate) const LINE: usize = 1 << 18;
/// Bytes that are read of one at a time.
const PIECE: usize = 1 << 12;
/// How long a client may stop within a line, or in reading an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a command there is none for so long, and for as many times as long as packets waited for it, but not for longer than that.
const REST: Duration = Duration::from_millis(1);
const REST_SHARE: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// How long no client is taken where the system has no descriptor left.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Looks whether the folder is free to put a socket there, and the time from one to the next.
const LOCK_TRIES: u32 = 20;
const LOCK_EVERY: Duration = Duration::from_millis(50);

/// A command of a client.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Counters,
    Reload,
    Save,
    Stop,
    Ports,
    /// Of an acl, or of all of them.
    Rules(Option<FunctionName>),
    Change(RuleChange),
    /// Flows, or connections, of a function.
    Flows(FlowQuery),
    Remove(FlowRemoval),
}

/// The commands, and the keys that each may have.
const COMMANDS: [(&str, &[&str]); 10] = [
    ("counters", &[]),
    ("reload", &[]),
    ("save", &[]),
    ("stop", &[]),
    ("ports", &[]),
    ("rules", &["function"]),
    ("change", &["function", "statements"]),
    ("flows", &["function", "filter", "by", "top"]),
    ("connections", &["function", "filter", "state", "top"]),
    ("remove", &["function", "filter", "flow", "all"]),
];

/// Flows that are listed unless another number is asked for.
pub(crate) const TOP: usize = 20;

/// A function's name or number in a line.
pub(crate) fn function_value(function: &FunctionName) -> Value {
    match function {
        FunctionName::Number(number) => (*number).into(),
        FunctionName::Name(name) => name.as_str().into(),
    }
}

impl Order {
    /// Reads a line, without its end.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let expected = || {
            let others: Vec<_> = COMMANDS[1..].iter().map(|(name, _)| *name).collect();
            format!("expected {{\"command\": \"counters\"}}, or {}", others.join(", "))
        };
        let value: Value =
            serde_json::from_slice(line).map_err(|error| format!("no JSON: {error}; {}", expected()))?;
        let object = value.as_object().ok_or_else(expected)?;
        let name = object.get("command").and_then(Value::as_str).ok_or_else(expected)?;
        let known = COMMANDS.iter().find(|(command, _)| *command == name);
        let (_, keys) = known.ok_or_else(|| format!("unknown command {name:?}; {}", expected()))?;
        if let Some(key) = object.keys().find(|&key| key != "command" && !keys.contains(&&**key)) {
            let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
            let keys = if keys.is_empty() { "no other key".into() } else { keys.join(", ") };
            return Err(format!("unknown key {key:?} with {name}; expected {keys}"));
        }
        let text = |key: &str, what: &str| match object.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(format!("{key} is {other}; expected {what}")),
        };
        /// One of some things that have names.
        fn one_of<T: Copy>(
            key: &str,
            all: &[T],
            name: fn(T) -> &'static str,
            found: &str,
        ) -> Result<T, String> {
            let names = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
            let one = all.iter().copied().find(|&one| name(one) == found);
            one.ok_or_else(|| format!("{key} is {found:?}; expected one of: {}", names()))
        }
        let function = match object.get("function") {
            None => None,
            Some(Value::String(name)) => Some(FunctionName::Name(name.clone())),
            Some(number) => Some(FunctionName::Number(number.as_u64().ok_or_else(|| {
                format!("function is {number}; expected the number of a function, from 0, or its name")
            })?)),
        };
        let filter = match text("filter", "an expression, such as \"host 10.0.0.1 and tcp port 443\"")? {
            None => None,
            Some(text) => Some(FlowFilter::parse(text).map_err(|error| format!("filter: {error}"))?),
        };
        let query = |connections| -> Result<Self, String> {
            let phase = text("state", "a state, such as \"established\"")?;
            let order = text("by", "an order, such as \"packets\"")?;
            let most = match object.get("top") {
                None => TOP,
                Some(number) => match number.as_u64().and_then(|number| usize::try_from(number).ok()) {
                    Some(number @ 1..=MOST_LISTED) => number,
                    _ => return Err(format!("top is {number}; expected 1 to {MOST_LISTED}")),
                },
            };
            Ok(Self::Flows(FlowQuery {
                function: function.clone(),
                selection: filter.clone().map_or(Selection::All, Selection::Filter),
                connections,
                phase: phase.map(|found| one_of("state", &Phase::ALL, Phase::name, found)).transpose()?,
                order: order
                    .map(|found| one_of("by", &FlowOrder::ALL, FlowOrder::name, found))
                    .transpose()?,
                most,
            }))
        };
        Ok(match name {
            "counters" => Self::Counters,
            "reload" => Self::Reload,
            "save" => Self::Save,
            "stop" => Self::Stop,
            "ports" => Self::Ports,
            "rules" => Self::Rules(function),
            "change" => {
                let expected = "lines with add, delete or replace";
                let statements = text("statements", expected)?;
                let statements =
                    statements.ok_or_else(|| format!("change expects statements: {expected}"))?;
                Self::Change(RuleChange::parse(function, statements)?)
            }
            "flows" => query(false)?,
            "connections" => query(true)?,
            _ => {
                let flow = text("flow", "a flow, such as \"tcp 10.0.0.1:1234 10.0.0.2:80\"")?;
                let flow = flow.map(str::parse::<FlowEnds>).transpose()?;
                let all = match object.get("all") {
                    None => false,
                    Some(Value::Bool(true)) => true,
                    Some(other) => return Err(format!("all is {other}; expected true")),
                };
                let selection = match (filter, flow, all) {
                    (Some(filter), None, false) => Selection::Filter(filter),
                    (None, Some(flow), false) => Selection::Flow(flow),
                    (None, None, true) => Selection::All,
                    _ => return Err("remove expects one of: filter, flow, \"all\": true".into()),
                };
                let function =
                    function.ok_or("remove expects a function: its number, from 0, or its name")?;
                Self::Remove(FlowRemoval { function, selection })
            }
        })
    }
}

/// A run as its control socket has it.
pub(crate) struct Controlled {
    pub(crate) control: Arc<Control>,
    pub(crate) stop: Stop,
    pub(crate) summarise: fn(&Outcome) -> Value,
    /// Why it cannot be reloaded, or has no state to be saved.
    pub(crate) no_reload: Option<String>,
    pub(crate) no_save: Option<String>,
}

/// A control socket. Dropped, it is removed, and its clients see that the run is over.
pub(crate) struct Server {
    path: PathBuf,
    /// Its device and inode.
    identity: (u64, u64),
    is_over: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Makes the socket and answers.
    pub(crate) fn start(path: &Path, run: Controlled) -> Result<Self, Failure> {
        let fail = |why: String| Failure::Run(anyhow::anyhow!("control socket {}: {why}", path.display()));
        let (listener, identity) = bind_at(path).map_err(fail)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| fail(error.to_string()))?);
        let is_over = Arc::new(AtomicBool::new(false));
        let (answer, answers) = channel();
        let desk = Desk {
            run,
            listener,
            bell: Arc::clone(&bell),
            is_over: Arc::clone(&is_over),
            clients: Vec::new(),
            next: 0,
            open: 0,
            answer,
            answers,
            rests_until: Instant::now(),
            takes_from: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || desk.work());
        let thread = Some(thread.map_err(|error| fail(error.to_string()))?);
        Ok(Self { path: path.to_owned(), identity, is_over, bell, thread })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Unless another file lies there by now.
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
        self.is_over.store(true, Ordering::Release);
        ring(&self.bell);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Wakes the thread.
fn ring(bell: &OwnedFd) {
    // It fails where it has been rung so often that nobody can have missed it.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes a socket that only its owner may connect to, in place of one that a run left when it was killed.
fn bind_at(path: &Path) -> Result<(UnixListener, (u64, u64)), String> {
    let said = |error: Errno| error.to_string();
    if is_standard(path) {
        return Err("no file; expected the path of a socket".into());
    }
    let address = SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => "its path is too long for a socket; expected up to 107 bytes".into(),
        error => error.to_string(),
    })?;
    let stream = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(said)
    };
    // Two runs that begin at the same time do not take each other for dead.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _lock = lock(folder);
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err("is no socket; expected a path where nothing lies".into());
        }
        Ok(_) => match connect(&stream()?, &address) {
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(|error| error.to_string())?,
            Ok(()) | Err(Errno::AGAIN) => {
                return Err("another run answers there; expected a path of its own for each run".into());
            }
            Err(error) => return Err(error.to_string()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.to_string()),
    }
    let socket = stream()?;
    // Before it has a name, so that nobody else ever may.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(said)?;
    bind(&socket, &address).map_err(said)?;
    listen(&socket, CLIENTS as i32).map_err(said)?;
    let made = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    Ok((UnixListener::from(socket), (made.dev(), made.ino())))
}

/// Locks a folder against other runs that make a socket there.
fn lock(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder, flags, Mode::empty()).ok()?;
    // Whoever keeps it locked for long is no run: it is gone on without.
    for _ in 0..LOCK_TRIES {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_EVERY),
            _ => break,
        }
    }
    Some(folder)
}

/// What there is to be told to a client, by its number.
type Answered = (u64, Result<Answer, String>);

/// What comes of a command.
enum Answer {
    /// It is done.
    Done,
    Counters(Box<Outcome>),
    /// An object for each interface, of these counters.
    Ports(Box<Outcome>),
    /// An object for each rule of an acl, or of all of them.
    Rules(Box<Outcome>, Option<FunctionName>),
    Changed(RulesChanged),
    Flows(Box<Listed>),
    Removed(Removed),
}

/// What went through the interfaces of a run, by its summary.
fn ports(mut summary: Value) -> Result<Vec<Value>, String> {
    match summary["interfaces"].take() {
        Value::Array(mut ports) => {
            look_at(&mut ports);
            Ok(ports)
        }
        _ => Err("the run reads captures, and has no interfaces".into()),
    }
}

/// Says of each interface whether it is up.
fn look_at(ports: &mut [Value]) {
    for port in ports {
        let link = port["name"].as_str().and_then(|name| Link::by_name(name).ok());
        port["up"] = link.as_ref().map_or(Value::Null, |link| link.is_up.into());
        port["carrier"] = link.map_or(Value::Null, |link| link.has_carrier.into());
    }
}

/// What the rules of a run have decided, by its summary: of acls, or of those that are asked for.
fn rules(mut summary: Value, asked: Option<&FunctionName>) -> Result<Vec<Value>, String> {
    let functions = summary["functions"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let functions = functions.into_iter().enumerate().filter(|(_, function)| function["nf"] == "acl");
    let (mut lines, mut acls, mut is_found) = (Vec::new(), Vec::new(), false);
    for (number, mut function) in functions {
        acls.push(number.to_string());
        if asked.is_some_and(|asked| !asked.is(number, "acl")) {
            continue;
        }
        is_found = true;
        let mut take = |key: &str| function[key].as_array_mut().map(std::mem::take).unwrap_or_default();
        let mut rules = take("hits");
        rules.extend(take("not_hit").into_iter().map(|mut rule| {
            rule["packets"] = 0.into();
            rule["bytes"] = 0.into();
            rule
        }));
        rules.sort_by_key(|rule| rule["rule"].as_u64());
        let others = [
            ("default", &function["default_packets"], &function["default_bytes"]),
            ("deleted", &function["deleted"]["packets"], &function["deleted"]["bytes"]),
        ];
        let others = others.into_iter().filter(|(_, packets, _)| !packets.is_null());
        rules.extend(others.map(
            |(text, packets, bytes)| json!({ "id": null, "text": text, "packets": packets, "bytes": bytes }),
        ));
        lines.extend(rules.into_iter().map(|rule| {
            let mut line = json!({ "function": number, "rule": null, "number": null, "line": null });
            if let (Some(line), Value::Object(rule)) = (line.as_object_mut(), rule) {
                line.extend(rule);
            }
            line
        }));
    }
    match (asked, &acls[..]) {
        (_, []) => Err("the chain has no acl, whose rules would be counted".into()),
        (Some(asked), acls) if !is_found => Err(format!(
            "function {asked} is no acl of the chain; expected \"acl\", or one of: {}",
            acls.join(", ")
        )),
        _ => Ok(lines),
    }
}

/// Tells a client what came of its command, also where the run drops that since it is over.
struct Ticket {
    client: u64,
    answer: Sender<Answered>,
    bell: Arc<OwnedFd>,
    is_used: bool,
}

impl Ticket {
    fn answer(mut self, result: Result<Answer, String>) {
        self.send(result);
    }

    fn send(&mut self, result: Result<Answer, String>) {
        self.is_used = true;
        let _ = self.answer.send((self.client, result));
        ring(&self.bell);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_used {
            self.send(Err("the run is over".into()));
        }
    }
}

/// An answer that is an object of its own.
fn with_version(what: Value) -> Value {
    let mut answer = json!({ "ok": true, "version": VERSION });
    if let (Some(answer), Value::Object(what)) = (answer.as_object_mut(), what) {
        answer.extend(what);
    }
    answer
}

/// An answer that is none.
fn refusal(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

/// What is told to a client: made in the socket's thread, since packets wait for the run's.
fn told(result: Result<Answer, String>, summarise: fn(&Outcome) -> Value) -> Value {
    let told = result.and_then(|answer| {
        Ok(match answer {
            Answer::Done => json!({ "ok": true }),
            Answer::Counters(outcome) => json!({ "ok": true, "counters": summarise(&outcome) }),
            Answer::Ports(outcome) => with_version(json!({ "ports": ports(outcome.json())? })),
            Answer::Rules(outcome, asked) => {
                with_version(json!({ "rules": rules(outcome.json(), asked.as_ref())? }))
            }
            Answer::Changed(changed) => with_version(changed.json()),
            Answer::Flows(listed) => with_version(listed.json()),
            Answer::Removed(removed) => with_version(removed.json()),
        })
    });
    told.unwrap_or_else(|why| refusal(&why))
}

/// The schema of the line of an answer.
pub(crate) fn answer_schema(counters: Value, port: Value, others: [Value; 3]) -> Value {
    let done = json!({ "type": "object", "properties": { "ok": { "const": true } }, "required": ["ok"] });
    let mut counted = done.clone();
    counted["properties"]["counters"] = counters;
    counted["required"] = json!(["ok", "counters"]);
    let list = |name: &str, of: Value| {
        let mut list = done.clone();
        list["properties"]["version"] = version_schema();
        list["properties"][name] = json!({ "type": "array", "items": of });
        list["required"] = json!(["ok", "version", name]);
        list
    };
    let (ports, rules) = (list("ports", port), list("rules", rule_schema()));
    let mut refused = done.clone();
    refused["properties"] = json!({
        "ok": { "const": false },
        "error": { "type": "string", "description": "What is wrong, and what was expected." },
    });
    refused["required"] = json!(["ok", "error"]);
    let [changed, flows, removed] = others.map(|mut of| {
        of["properties"]["ok"] = json!({ "const": true });
        if let Some(required) = of["required"].as_array_mut() {
            required.push("ok".into());
        }
        of
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line that a control socket answers",
        "anyOf": [counted, ports, rules, changed, flows, removed, done, refused],
    })
}

fn version_schema() -> Value {
    json!({ "type": "string", "description": "The version of Packetloom that answers." })
}

/// The schema of what is said of an interface, of which a summary says this.
pub(crate) fn port_schema(mut interface: Value) -> Value {
    interface["properties"]["up"] = json!({ "type": ["boolean", "null"], "description": "Whether it is switched on; null where it is not there any more." });
    interface["properties"]["carrier"] =
        json!({ "type": ["boolean", "null"], "description": "Whether there is somebody at its other end." });
    interface
}

/// The schema of what is said of a rule.
pub(crate) fn rule_schema() -> Value {
    let number = |text: &str| json!({ "type": "integer", "minimum": 0, "description": text });
    let or_null = |kind: &str, text: &str| json!({ "type": [kind, "null"], "description": text });
    json!({
        "type": "object",
        "properties": {
            "function": number("The place of its acl in the chain, from 0."),
            "rule": or_null("integer", "Its position in the list, from 0; null for packets that no rule matched, and for all rules that are gone."),
            "number": or_null("integer", "The number N that @N names it by in change."),
            "line": or_null("integer", "Its line in the rule file; null for one that change added."),
            "id": or_null("string", "Its id, if it has one."),
            "comment": or_null("string", "Its comment, if it has one and decided packets."),
            "text": { "type": "string", "description": "The rule; \"default\", or \"deleted\" for all that are gone." },
            "packets": number("Packets that it decided."),
            "bytes": or_null("integer", "Their IP bytes, where they are counted."),
        },
        "required": ["function", "rule", "number", "line", "id", "text", "packets", "bytes"],
    })
}

/// The schema of a line of `control PATH ports --json` or `control PATH rules --json`.
pub(crate) fn line_schema(title: &str, mut of: Value) -> Value {
    of["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    of["title"] = title.into();
    of["properties"]["version"] = version_schema();
    if let Some(required) = of["required"].as_array_mut() {
        required.push("version".into());
    }
    of
}

/// Who has connected.
struct Client {
    number: u64,
    stream: UnixStream,
    /// What was read and not acted upon: up to a line, or a part of it.
    received: Vec<u8>,
    /// Bytes of it that are known to have no end of a line; what follows them is one, if there is more.
    searched: usize,
    /// Whether no more comes from it.
    has_ended: bool,
    turn: Turn,
    /// When something was read or written the last time.
    since: Instant,
}

/// Whose turn it is.
enum Turn {
    /// The client's.
    Client,
    /// The run's.
    Run,
    /// The client's, which has to read this from a place on; and whether it is let go of then.
    Answer(Vec<u8>, usize, bool),
}

/// What can be done for a client next.
enum Next {
    /// It has to wait for the client, the run or the time.
    Wait,
    /// A line came, which is a command or none.
    Act(Vec<u8>),
    /// It is to be let go of.
    Leave,
}

impl Client {
    fn answer(&mut self, told: &Value, is_last: bool) {
        self.turn = Turn::Answer(format!("{told}\n").into_bytes(), 0, is_last);
        self.since = Instant::now();
    }

    /// Whether a command waits to be acted upon.
    fn has_line(&self) -> bool {
        matches!(self.turn, Turn::Client) && self.searched < self.received.len()
    }

    /// Looks for the end of the line in what has come since the last time.
    fn search(&mut self) {
        let new = &self.received[self.searched..];
        self.searched += new.iter().position(|&byte| byte == b'\n').unwrap_or(new.len());
    }

    /// What is waited for, if it is anything that the client does.
    fn events(&self) -> Option<PollFlags> {
        match self.turn {
            // What it sent before it went is acted upon in its time.
            Turn::Client if self.has_ended => None,
            Turn::Client if self.received.len() == LINE => Some(PollFlags::empty()),
            Turn::Client => Some(PollFlags::IN),
            Turn::Run => Some(PollFlags::empty()),
            Turn::Answer(..) => Some(PollFlags::OUT),
        }
    }

    /// When it is let go of unless it goes on.
    fn deadline(&self) -> Option<Instant> {
        let is_within = match self.turn {
            Turn::Client => !self.received.is_empty() && !self.has_line(),
            Turn::Run => false,
            Turn::Answer(..) => true,
        };
        is_within.then(|| self.since + PATIENCE)
    }

    /// Reads what there is, up to a line's length; whether it is still there.
    fn read(&mut self) -> bool {
        let mut bytes = [0; PIECE];
        while !self.has_ended && self.received.len() < LINE {
            let room = PIECE.min(LINE - self.received.len());
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => self.has_ended = true,
                Ok(len) => {
                    self.received.extend_from_slice(&bytes[..len]);
                    self.search();
                    self.since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Writes what it takes of an answer; whether it is still there.
    fn write(&mut self) -> bool {
        while let Turn::Answer(bytes, at, is_last) = &mut self.turn {
            match self.stream.write(&bytes[*at..]) {
                Ok(len) => {
                    *at += len;
                    self.since = Instant::now();
                    if *at == bytes.len() {
                        if *is_last {
                            return false;
                        }
                        self.turn = Turn::Client;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Takes the next line that has come, if it may be acted upon now.
    fn next(&mut self, is_resting: bool) -> Next {
        if !matches!(self.turn, Turn::Client) {
            return Next::Wait;
        }
        let end = self.searched;
        if end < self.received.len() {
            if is_resting {
                return Next::Wait;
            }
            let line = self.received[..end].to_vec();
            self.received.drain(..=end);
            self.received.shrink_to(PIECE);
            self.searched = 0;
            self.search();
            return Next::Act(line);
        }
        let why = match self.received.len() {
            LINE => format!("the line is too long; expected up to {LINE} bytes"),
            _ if !self.has_ended => return Next::Wait,
            0 => return Next::Leave,
            _ => "the line has no end; expected a newline".into(),
        };
        self.answer(&refusal(&why), true);
        if self.write() { Next::Wait } else { Next::Leave }
    }
}

/// What the thread has.
struct Desk {
    run: Controlled,
    listener: UnixListener,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    clients: Vec<Client>,
    /// The number of the next client.
    next: u64,
    /// Commands that are not answered, those of clients that are gone among them: at most as many as clients.
    open: usize,
    answer: Sender<Answered>,
    answers: Receiver<Answered>,
    /// When the run may be asked again.
    rests_until: Instant,
    /// When clients may be taken again.
    takes_from: Instant,
}

impl Desk {
    fn work(mut self) {
        while !self.is_over.load(Ordering::Acquire) {
            self.wait();
            self.take_answer();
            self.serve();
            self.accept();
        }
        // What the run did before it was over is still told, to whoever reads.
        self.take_answer();
        for mut client in self.clients {
            client.write();
        }
    }

    /// Waits until something happens.
    fn wait(&mut self) {
        let now = Instant::now();
        let takes = now >= self.takes_from;
        let mut wakes: Vec<_> = self.clients.iter().filter_map(Client::deadline).collect();
        // The rest may be over since these were looked at.
        if self.open < CLIENTS && self.clients.iter().any(Client::has_line) {
            wakes.push(self.rests_until);
        }
        if !takes {
            wakes.push(self.takes_from);
        }
        let timeout = wakes.into_iter().min().map(|wake| {
            // Not a moment too early, which would be looking all the time.
            let left = wake.saturating_duration_since(now) + Duration::from_micros(100);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let listens = if takes && self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN), PollFd::new(&self.listener, listens)];
        fds.extend(
            self.clients
                .iter()
                .filter_map(|client| Some(PollFd::from_borrowed_fd(client.stream.as_fd(), client.events()?))),
        );
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let found: Vec<_> = fds[2..].iter().map(PollFd::revents).collect();
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        let mut found = found.into_iter();
        self.clients.retain_mut(|client| {
            let Some(found) = client.events().and_then(|_| found.next()) else { return true };
            match client.turn {
                Turn::Client if found.contains(PollFlags::IN) => client.read(),
                _ if found.intersects(PollFlags::HUP | PollFlags::ERR) => false,
                Turn::Answer(..) if found.contains(PollFlags::OUT) => client.write(),
                _ => true,
            }
        });
    }

    /// Takes an answer of the run to its client. Of several it takes one: a long one takes its time, in which others want to be written on.
    fn take_answer(&mut self) {
        if let Ok((number, result)) = self.answers.try_recv() {
            // For the next one, if there is one.
            ring(&self.bell);
            // As long as packets waited, and some more, they do not.
            self.open -= 1;
            let rest = self.run.control.held().saturating_mul(REST_SHARE);
            self.rests_until = Instant::now() + rest.clamp(REST, LONGEST_REST);
            if let Some(at) = self.clients.iter().position(|client| client.number == number) {
                self.clients[at].answer(&told(result, self.run.summarise), false);
                if !self.clients[at].write() {
                    self.clients.remove(at);
                }
            }
        }
    }

    /// Acts upon the lines that have come.
    fn serve(&mut self) {
        let now = Instant::now();
        let mut at = 0;
        while let Some(client) = self.clients.get_mut(at) {
            if client.deadline().is_some_and(|deadline| deadline <= now) {
                self.clients.remove(at);
                continue;
            }
            match client.next(now < self.rests_until || self.open == CLIENTS) {
                Next::Wait => at += 1,
                Next::Leave => {
                    self.clients.remove(at);
                }
                Next::Act(line) => {
                    let number = client.number;
                    client.turn = Turn::Run;
                    self.open += 1;
                    self.act(number, &line);
                    at += 1;
                }
            }
        }
    }

    /// Does what a client says; the answer comes as that of the run.
    fn act(&self, client: u64, line: &[u8]) {
        let (answer, bell) = (self.answer.clone(), Arc::clone(&self.bell));
        let ticket = Ticket { client, answer, bell, is_used: false };
        let control = &self.run.control;
        let done = |ticket: Ticket| {
            Box::new(move |result: Result<(), String>| ticket.answer(result.map(|()| Answer::Done)))
        };
        let order = match Order::parse(line) {
            Ok(order) => order,
            Err(why) => return ticket.answer(Err(why)),
        };
        match order {
            Order::Counters => control.ask(Request::Counters(Box::new(move |outcome| {
                ticket.answer(outcome.map(|outcome| Answer::Counters(Box::new(outcome))));
            }))),
            Order::Ports => control.ask(Request::Counters(Box::new(move |outcome| {
                ticket.answer(outcome.map(|outcome| Answer::Ports(Box::new(outcome))));
            }))),
            Order::Rules(function) => control.ask(Request::Counters(Box::new(move |outcome| {
                ticket.answer(outcome.map(|outcome| Answer::Rules(Box::new(outcome), function)));
            }))),
            Order::Change(change) => control.ask(Request::Change(
                change,
                Box::new(move |changed| ticket.answer(changed.map(Answer::Changed))),
            )),
            Order::Flows(query) => control.ask(Request::Flows(
                query,
                Box::new(move |listed| ticket.answer(listed.map(|listed| Answer::Flows(Box::new(listed))))),
            )),
            Order::Remove(removal) => control.ask(Request::Remove(
                removal,
                Box::new(move |removed| ticket.answer(removed.map(Answer::Removed))),
            )),
            Order::Reload => match &self.run.no_reload {
                Some(why) => ticket.answer(Err(why.clone())),
                None => control.ask(Request::Reload(done(ticket))),
            },
            Order::Save => match &self.run.no_save {
                Some(why) => ticket.answer(Err(why.clone())),
                None => control.ask(Request::Save(done(ticket))),
            },
            Order::Stop => {
                self.run.stop.store(true, Ordering::Relaxed);
                ticket.answer(Ok(Answer::Done));
            }
        }
    }

    /// Takes who has connected.
    fn accept(&mut self) {
        if Instant::now() < self.takes_from {
            return;
        }
        // A few at a time, so that what they say is looked at before others take their places.
        for _ in 0..CLIENTS / 4 {
            if !self.has_room() {
                return;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.takes_from = Instant::now() + EXHAUSTED;
                    return;
                }
            };
            // Those who come and go do not keep this thread busy.
            self.takes_from = Instant::now() + REST;
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_room();
            let (number, since) = (self.next, Instant::now());
            self.next += 1;
            let turn = Turn::Client;
            let received = Vec::new();
            let client = Client { number, stream, received, searched: 0, has_ended: false, turn, since };
            self.clients.push(client);
        }
    }

    /// Whether there is room for a further client, or a client that can be let go of.
    fn has_room(&self) -> bool {
        self.clients.len() < CLIENTS || self.clients.iter().any(|client| !matches!(client.turn, Turn::Run))
    }

    /// Where there is no room for a further client, lets go of the one that has been silent for the longest time: of those that have said
    /// nothing, if there are any.
    fn make_room(&mut self) {
        if self.clients.len() < CLIENTS {
            return;
        }
        let silent = self.clients.iter().enumerate().filter(|(_, client)| !matches!(client.turn, Turn::Run));
        let first = silent.min_by_key(|(_, client)| (client.has_line(), client.since));
        if let Some((at, _)) = first {
            self.clients.remove(at);
        }
    }
}

/// What a run answers to a command, which is a line without its end.
pub(crate) fn ask(path: &Path, order: &Value) -> Result<Value, Failure> {
    let line = format!("{order}\n");
    // What a run would say about it needs none.
    Order::parse(line.as_bytes()).map_err(Failure::Usage)?;
    if line.len() > LINE {
        let message = format!("a command of {} bytes; expected up to {LINE}", line.len());
        return Err(Failure::Usage(message));
    }
    let command = order["command"].as_str().unwrap_or_default();
    let fail = |error: io::Error| Failure::Run(anyhow::anyhow!("{}: {}", path.display(), plain(&error)));
    let mut stream = UnixStream::connect(path).map_err(|error| {
        Failure::Unavailable(format!("{}: no run answers there: {}", path.display(), plain(&error)))
    })?;
    stream.write_all(line.as_bytes()).map_err(fail)?;
    let mut reader = io::BufReader::new(stream);
    let mut line = String::new();
    io::BufRead::read_line(&mut reader, &mut line).map_err(fail)?;
    let over = || Failure::Run(anyhow::anyhow!("{}: the run ended before it answered", path.display()));
    let answer: Value = serde_json::from_str(&line).map_err(|_| over())?;
    if answer["ok"] != true {
        let why = answer["error"].as_str().unwrap_or("it does not say why");
        return Err(Failure::Run(anyhow::anyhow!("{command} failed: {why}")));
    }
    if command == "stop" {
        // The end of the connection is that of the run.
        io::copy(&mut reader, &mut io::sink()).map_err(fail)?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> (Client, UnixStream) {
        let (stream, other) = UnixStream::pair().expect("a pair");
        stream.set_nonblocking(true).expect("set");
        other.set_nonblocking(true).expect("set");
        let since = Instant::now();
        let received = Vec::new();
        let turn = Turn::Client;
        let client = Client { number: 0, stream, received, searched: 0, has_ended: false, turn, since };
        (client, other)
    }

    /// A command that had to wait for the end of a rest is acted upon, also where that came just before the thread went to wait.
    #[test]
    fn a_rest_that_is_over_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("bound");
        let (answer, answers) = channel();
        let now = Instant::now();
        let mut desk = Desk {
            run: Controlled {
                control: Arc::default(),
                stop: Stop::default(),
                summarise: |_| Value::Null,
                no_reload: None,
                no_save: None,
            },
            listener,
            bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a bell")),
            is_over: Arc::default(),
            clients: Vec::new(),
            next: 1,
            open: 0,
            answer,
            answers,
            rests_until: now,
            takes_from: now,
        };
        let (mut client, mut other) = client();
        other.write_all(b"{\"command\":\"stop\"}\n").expect("sent");
        assert!(client.read() && matches!(client.next(true), Next::Wait));
        desk.clients.push(client);
        let bell = Arc::clone(&desk.bell);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(8));
            ring(&bell);
        });
        desk.wait();
        assert!(now.elapsed() < Duration::from_secs(8), "it waited for the bell");
        desk.serve();
        assert!(desk.run.stop.load(Ordering::Relaxed));
        late.join().expect("it rings");
    }

    /// Commands with bytes changed, taken out and put in, that come in pieces of any length: what is acted upon are the lines that are
    /// commands as they stand, in order, whatever is around them, until a line is too long.
    #[test]
    fn lines_are_what_they_are_however_they_come() {
        let mut state = 1u64;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let (mut commands, mut others, mut too_long) = (0, 0, 0);
        for _ in 0..2_000 {
            let mut bytes = Vec::new();
            for _ in 0..=below(6) {
                let (name, _) = COMMANDS[below(COMMANDS.len())];
                let keys = match name {
                    "remove" => ", \"function\": 0, \"flow\": \"tcp 10.0.0.1:1 10.0.0.2:2\"",
                    "flows" => ", \"filter\": \"tcp port 80\", \"top\": 3",
                    "change" => ", \"statements\": \"delete @1\\nadd permit any from any to any\"",
                    _ => "",
                };
                // Some are too long.
                let blanks = if below(40) == 0 { LINE / 2 + below(LINE) } else { below(3) * below(600) };
                let mut line =
                    format!("{}{{\"command\": \"{name}\"{keys}}}", " ".repeat(blanks)).into_bytes();
                for _ in 0..below(2) * below(4) {
                    let at = below(line.len());
                    match below(3) {
                        0 => line[at] = below(256) as u8,
                        1 => drop(line.remove(at)),
                        _ => line.insert(at, b"{}[]\":\\,\n "[below(10)]),
                    }
                    line.push(b' ');
                }
                bytes.extend(line);
                bytes.push(b'\n');
            }
            // The slow and obvious way.
            let mut expected = Vec::new();
            let lines: Vec<_> = bytes.split(|&byte| byte == b'\n').collect();
            for line in &lines[..lines.len() - 1] {
                if line.len() >= LINE {
                    break;
                }
                expected.push(line.to_vec());
            }
            let is_cut = expected.len() + 1 < lines.len();
            let (mut client, mut other) = client();
            let (mut found, mut sent, mut is_gone) = (Vec::new(), 0, false);
            while !is_gone && sent < bytes.len() {
                let piece = 1 + below(if bytes.len() > 1 << 15 { 1 << 16 } else { 700 });
                let end = bytes.len().min(sent + piece);
                other.write_all(&bytes[sent..end]).expect("sent");
                sent = end;
                loop {
                    assert!(client.read() && client.received.len() <= LINE);
                    match client.next(false) {
                        Next::Act(command) => found.push(command),
                        Next::Leave => {
                            is_gone = true;
                            break;
                        }
                        Next::Wait => break,
                    }
                }
            }
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(&bytes));
            assert_eq!(is_gone, is_cut);
            let are_commands = found.iter().filter(|line| Order::parse(line).is_ok()).count();
            commands += are_commands;
            others += found.len() - are_commands;
            too_long += usize::from(is_cut);
        }
        assert!(commands > 1_000 && others > 1_000 && too_long > 10, "{commands}, {others}, {too_long}");
    }
}
