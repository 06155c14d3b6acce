//! Runs between interfaces that are asked for something: to end after so many packets, to say what they count, to read their chain again, to
//! keep the state of flows for the next run.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use packetloom_testing::ends::{is_answered, ping};
use packetloom_testing::net::{Net, SERVER};
use rustix::process::Signal;

use crate::link::Link;
use crate::product::{Product, count, interfaces, sum};
use crate::support::packets::packet;

const CHAIN: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const PERMIT: &str = "permit any from any to any\n";

#[test]
fn a_run_ends_after_as_many_packets_as_were_asked_for() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let frames: Vec<_> = (1..=500)
        .map(|port| packet(&format!("0 udp 10.0.0.1:{port} > 10.0.0.2:80 payload 18")).bytes)
        .collect();
    for (workers, limit) in [(1, 5), (1, 300), (3, 5), (3, 300)] {
        let arguments = format!("-c {limit} -w passed.pcap --workers {workers}");
        let product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        link.client.send(&frames);
        let done = product.end();
        let mut came = Vec::new();
        link.server.take_all(&mut came);
        assert!(came == frames[..limit], "{} frames came", came.len());
        assert!(crate::support::frames(&done.passed) == frames[..limit]);
        assert_eq!(count(&done.summary, "/received"), limit as u64);
        assert_eq!(done.summary["stopped"], false, "{:#}", done.summary);
    }
}

/// From the line on that says that the interfaces are open.
#[test]
fn a_run_says_what_it_counts_when_it_is_asked() {
    let Some(net) = Net::new() else { return };
    for workers in [1, 2] {
        let arguments = format!("--workers {workers}");
        let mut product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        let (received, _) = product.progress();
        ping(&net, SERVER[0], 5).expect("answered");
        // What was sent is counted a moment later.
        product.wait_until_received(received + 10);
        let (now, passed) = product.progress();
        assert!(now >= received + 10 && passed == now, "{:#?}", product.said);
        product.stop();
    }
}

/// By its control socket, also while nothing comes: what it counts, interfaces among it; another chain; its end.
#[test]
fn a_run_is_asked_and_told_by_its_socket() {
    let Some(net) = Net::new() else { return };
    for workers in [1, 3] {
        let arguments = format!("--workers {workers} --control run.sock");
        let product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        let control = |command: &str| {
            let mut client = crate::support::packetloom();
            client.arg("control").arg(product.at("run.sock")).arg(command);
            client
        };
        let counters = || -> serde_json::Value {
            serde_json::from_str(&crate::support::succeed(&mut control("counters"))).expect("JSON")
        };
        let before = counters();
        ping(&net, SERVER[0], 5).expect("answered");
        let (mut after, begin) = (counters(), Instant::now());
        while count(&after, "/received") < count(&before, "/received") + 10 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{after:#}");
            after = counters();
        }
        for interface in interfaces(&after) {
            assert!(count(interface, "/received") >= 5 && count(interface, "/sent") >= 5, "{after:#}");
        }
        let ports = crate::support::succeed(control("ports").arg("--json"));
        let schema = crate::support::succeed(crate::support::packetloom().args(["schema", "control-ports"]));
        let schema = serde_json::from_str(&schema).expect("JSON");
        assert_eq!(ports.lines().count(), 2);
        for port in ports.lines() {
            let port: serde_json::Value = serde_json::from_str(port).expect("JSON");
            crate::support::schema::check(&schema, &port).unwrap_or_else(|why| panic!("{why}: {port}"));
            assert_eq!((&port["up"], &port["carrier"]), (&true.into(), &true.into()), "{port}");
            assert!(count(&port, "/received") >= 5 && count(&port, "/sent") >= 5, "{port}");
        }
        let table = crate::support::succeed(&mut control("ports"));
        assert!(table.lines().next().is_some_and(|head| head.contains("backend")), "{table}");
        for name in ["pa", "pb"] {
            let row = table.lines().find(|row| row.split_whitespace().next() == Some(name));
            assert!(row.is_some_and(|row| row.contains(" af_packet ") && row.contains(" up ")), "{table}");
        }
        std::fs::write(product.at("rules"), "permit everything\n").expect("written");
        assert_eq!(crate::support::run(&mut control("reload")).status.code(), Some(1));
        ping(&net, SERVER[0], 1).expect("answered");
        std::fs::write(product.at("rules"), "deny any from any to any\n").expect("written");
        crate::support::succeed(&mut control("reload"));
        assert!(!is_answered(&net, SERVER[0]), "denied");
        crate::support::succeed(&mut control("stop"));
        let done = product.end();
        assert_eq!(done.summary["stopped"], true);
        assert_eq!(done.summary["reloads"], serde_json::json!({ "done": 1, "refused": 1 }));
        assert!(sum(&done.summary, "/dropped") > 0, "{:#}", done.summary);
    }
}

/// A chain that cannot be gone on with is refused, and packets pass as before.
#[test]
fn a_chain_that_cannot_be_taken_is_refused_and_the_run_goes_on() {
    let Some(net) = Net::new() else { return };
    let mut product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], "--workers 2");
    let chain = std::fs::read_to_string(product.at("chain.toml")).expect("read");
    for (file, text) in [
        ("rules", "permit everything\n"),
        ("chain.toml", "[[chain]]\nnf = \"none such\"\n"),
        ("chain.toml", &*chain.replace("inline", "monitor")),
        ("chain.toml", &*chain.replace("[\"pa\", \"pb\"]", "[\"pb\", \"pa\"]")),
        ("chain.toml", &*chain.replace("interface = [\"pa\", \"pb\"]\nmode = \"inline\"", "capture = \"x\"")),
    ] {
        let before = std::fs::read_to_string(product.at(file)).expect("read");
        std::fs::write(product.at(file), text).expect("written");
        product.forget();
        product.signal(Signal::HUP);
        // While nothing comes, too.
        product.wait_for("the chain stays as it is");
        ping(&net, SERVER[0], 2).expect("answered");
        std::fs::write(product.at(file), before).expect("written");
    }
    // One that denies everything is taken, and so is the next one.
    for (rules, is_permitted) in [("deny any from any to any\n", false), (PERMIT, true)] {
        std::fs::write(product.at("rules"), rules).expect("written");
        product.forget();
        product.signal(Signal::HUP);
        product.wait_for("read again");
        if is_permitted {
            ping(&net, SERVER[0], 1).expect("answered");
        } else {
            assert!(!is_answered(&net, SERVER[0]), "{rules}");
        }
    }
    let done = product.stop();
    assert_eq!(count(&done.summary, "/reloads/done"), 2, "{:#}", done.summary);
    assert_eq!(count(&done.summary, "/reloads/refused"), 5, "{:#}", done.summary);
}

/// Terminals that close and programs that rotate logs send SIGHUP to whatever is there.
#[test]
fn a_run_that_reads_nothing_again_says_so() {
    let Some(net) = Net::new() else { return };
    let mut product = Product::start(&net.product, &[], "meter -i pa -o flows.jsonl");
    for _ in 0..2 {
        product.forget();
        product.signal(Signal::HUP);
        product.wait_for("packetloom: SIGHUP: a meter has no chain file to be read again; the run goes on");
        let (before, _) = product.progress();
        is_answered(&net, SERVER[0]);
        product.wait_until_received(before + 1);
    }
    product.stop();
}

/// A connection goes on through the next run where that knows it, and not where it does not.
#[test]
fn connections_outlive_a_run() {
    let Some(net) = Net::new() else { return };
    let chain = "[[chain]]\nnf = \"conntrack\"\n";
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("flows.state");
    let state = state.to_str().expect("a path");
    let saving = format!("--save-state {state} --workers 1");
    let product = Product::inline(&net.product, chain, &[], &saving);
    let listener = net.server.run(|| TcpListener::bind("0.0.0.0:7000").expect("bound"));
    let mut client = net.client.run(|| TcpStream::connect((SERVER[0], 7_000)).expect("connected"));
    let (mut server, _) = listener.accept().expect("a connection");
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    }
    let mut talk = |text: &[u8; 5]| {
        client.write_all(text)?;
        let mut got = [0; 5];
        server.read_exact(&mut got)?;
        server.write_all(&got)?;
        client.read_exact(&mut got)?;
        assert_eq!(&got, text);
        std::io::Result::Ok(())
    };
    talk(b"first").expect("through the first run");
    product.stop_by(Signal::TERM);
    // By other workers, from one to the next, and from time to time.
    for workers in [3, 2] {
        let arguments =
            format!("--restore-state {state} --save-state {state} --save-every 100ms --workers {workers}");
        let product = Product::inline(&net.product, chain, &[], &arguments);
        talk(b"again").expect("through the next run");
        let done = product.stop();
        assert_eq!(sum(&done.summary, "/dropped"), 0, "{:#}", done.summary);
        assert_eq!(count(&done.summary, "/functions/0/connections/tcp/opened"), 0, "{:#}", done.summary);
    }
    // Who does not know the connection has to refuse it, or what was tested above is nothing.
    let product = Product::inline(&net.product, chain, &[], "");
    net.client.run(|| {
        client.write_all(b"never").expect("to the kernel");
        server.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        server.read_exact(&mut [0; 5]).expect_err("dropped");
    });
    let done = product.stop();
    assert!(count(&done.summary, "/dropped/invalid_connection") > 0, "{:#}", done.summary);
}

/// Lists with a rule for everything, and a default for what is left: what no rule permits does not arrive, though the kernel could forward.
#[test]
fn what_no_rule_permits_does_not_arrive() {
    let Some(net) = Net::new() else { return };
    for port in ["pa", "pb"] {
        net.product.set(&format!("ipv4/conf/{port}/proxy_arp"), "1");
    }
    net.product.set("ipv4/ip_forward", "1");
    let mut link = Link::new(&net);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("generated");
    let mut generate = crate::support::packetloom();
    generate.args(["generate", "rules", "--rules", "10000", "--format", "native", "-o"]).arg(&file);
    crate::support::succeed(&mut generate);
    let generated = std::fs::read_to_string(&file).expect("rules");
    // The last one is for all that is left, which is the default's here.
    let (generated, last) = generated.trim_end().rsplit_once('\n').expect("lines");
    assert!(last.starts_with("deny any ") && generated.lines().count() >= 9_999, "{last}");
    let rules = format!(
        "permit udp from 10.9.0.1 to 10.9.0.2 port 53\n\
         deny udp from any to 10.9.0.2 port 54\n\
         {generated}\n"
    );
    let frames: Vec<_> = (0..300)
        .map(|number| {
            let port = 53 + number % 3;
            packet(&format!("0 udp 10.9.0.1:{} > 10.9.0.2:{port} payload 18", 1_000 + number)).bytes
        })
        .collect();
    let permitted: Vec<_> = frames.iter().step_by(3).cloned().collect();
    for workers in [1, 3] {
        let arguments = format!("--workers {workers}");
        let mut product = Product::inline(&net.product, CHAIN, &[("rules", &rules)], &arguments);
        assert!(link.send(&mut product, &frames) == permitted, "{workers} workers: other frames");
        let done = product.stop();
        assert_eq!(count(&done.summary, "/passed"), 100, "{:#}", done.summary);
        assert_eq!(count(&done.summary, "/dropped/acl_rule"), 100, "{:#}", done.summary);
        assert_eq!(count(&done.summary, "/dropped/acl_default"), 100, "{:#}", done.summary);
        assert_eq!(interfaces(&done.summary).map(|of| count(of, "/missed")).sum::<u64>(), 0);
    }
    let mut back = Vec::new();
    link.client.take_all(&mut back);
    assert_eq!(back, Vec::<Vec<u8>>::new(), "nobody answers in the server's place");
}
