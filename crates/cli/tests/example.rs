//! The example that ships, against counts that another program made from the same recording (examples/edge/README.md).

#![allow(missing_docs)]

mod support;

use serde_json::json;
use support::{packetloom, root, succeed};

#[test]
fn the_edge_example_gives_the_published_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["chain.toml", "edge.pcap", "edge.rules"] {
        std::fs::copy(root().join("examples/edge").join(file), folder.path().join(file)).expect("copied");
    }
    let mut outputs = Vec::new();
    // The host's compiler stands for a GPU.
    for how in [["--workers", "1"], ["--workers", "4"], ["--device", "host"]] {
        let mut command = packetloom();
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        succeed(command.arg("run").arg(folder.path().join("chain.toml")).args(how));
        let summary = support::json(&folder.path().join("summary.json"));
        assert_eq!(summary["received"], 5061);
        assert_eq!(summary["passed"], 4733 + 4, "permitted, and ARP");
        let dropped = summary["dropped"].as_object().expect("reasons").iter();
        let dropped: Vec<_> = dropped.filter(|(_, count)| **count != 0).collect();
        assert_eq!(json!(dropped), json!([["acl_rule", 30], ["acl_default", 294]]));
        let hits: Vec<_> = summary["functions"][0]["hits"].as_array().expect("hits").iter().collect();
        let hit = |id: &str| hits.iter().find(|hit| hit["id"] == id).map(|hit| hit["packets"].clone());
        for (id, packets) in
            [("telnet", 6), ("ping4", 52), ("icmp6-rest", 18), ("web4-back", 602), ("iperf6", 72)]
        {
            assert_eq!(hit(id), Some(packets.into()), "{id}");
        }
        assert_eq!(summary["functions"][1]["counted_ip_bytes"], 2_892_879);
        let mut flows = std::fs::read_to_string(folder.path().join("flows.jsonl")).expect("flows");
        let mut lines: Vec<_> = flows.lines().collect();
        lines.sort_unstable();
        flows = lines.join("\n");
        outputs.push((flows, std::fs::read(folder.path().join("permitted.pcap")).expect("a capture")));
    }
    assert!(
        outputs.iter().all(|output| *output == outputs[0]),
        "one worker, four and a device give the same packets in order and the same flows"
    );
}

#[test]
fn the_plan_of_the_example_is_printed() {
    let plan = succeed(packetloom().arg("check").arg(root().join("examples/edge/chain.toml")));
    for text in
        ["35 rules", "first match wins", "default deny", "idle 30s, active 5m", "permitted.pcap", "1 worker"]
    {
        assert!(plan.contains(text), "{text:?} in {plan}");
    }
}
