//! Functions that are built in, on devices: they find what they find on cores. Without a device but the host nothing runs here.

use packetloom_device::Id;
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_packet::Batch;

use super::*;

/// Devices for the tests, each once.
fn accelerators() -> Vec<nca_dev> {
    let kinds = packetloom_testing::accelerators().into_iter().map(|id| match id {
        Id::Host => unreachable!("it is none"),
        Id::OpenCl(_) => nca_dev_type::NCA_OPENCL as c_int,
        Id::Cuda(_) => nca_dev_type::NCA_CUDA as c_int,
    });
    let kinds: std::collections::BTreeSet<c_int> = kinds.collect();
    kinds.into_iter().map(|dev_type| nca_dev { dev_type, num_devices: 1 }).collect()
}

/// What a stream finds in these buffers of packets, all of which are on their way at the same time.
fn found(
    dev: nca_dev,
    chain: &[c_int],
    sets: &[c_int],
    size: c_int,
    buffers: &[Vec<&[u8]>],
) -> Vec<Vec<u32>> {
    let s = works(stream(buffers.len() as c_int, size, None, chain, sets, dev));
    for (buffer, packets) in buffers.iter().enumerate() {
        works(add(s, buffer as c_int, packets));
        works(nca_buffer_ready(s, buffer as c_int));
    }
    let of_buffer = |buffer: usize| {
        works(nca_wait(s, buffer as c_int, -1));
        results(s, buffer as c_int).expect("results")
    };
    let found = (0..buffers.len()).map(of_buffer).collect();
    works(nca_traffic_stream_close(s));
    found
}

/// Adds strings with keys beside [`WORDS`].
fn add_with_keys(id: c_int, name: &CStr, keys: &CStr, result_size: c_int) {
    static KEYS: Mutex<Option<CString>> = Mutex::new(None);
    unsafe extern "C" fn init(id: c_int, params: *mut nca_function_params) -> c_int {
        // SAFETY: as the library says.
        unsafe { init_strings(id, params) };
        let keys = KEYS.lock().expect("no panic");
        // SAFETY: as the library says. The text stays until the function was added.
        unsafe { (*params).config = keys.as_ref().expect("set before").as_ptr() };
        0
    }
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().expect("no panic");
    *KEYS.lock().expect("no panic") = Some(keys.to_owned());
    // SAFETY: texts, and a callback of its type.
    works(unsafe { nca_add_network_function(id, Some(init), null(), name.as_ptr(), None, result_size) });
}

#[test]
fn searches_on_devices_find_what_the_oracle_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    works(add_strings(1300, c"strings", 8));
    works(add_strings(1301, c"aho-corasick", 8));
    works(add_strings(1302, c"strings", 4));
    add_with_keys(1303, c"strings", c"skip = 3\nignore_case = true", 8);
    add_lens(1304, folder.path());
    let chain = [1300, 1304, 1301, 1302, 1303];
    for dev in accelerators() {
        for (round, sets) in [[1; 5], [2, 1, 1, 0, 3]].iter().enumerate() {
            // Part-filled buffers of any size, and a packet alone.
            let counts = [1, 99, 100, 3, 64, 31, 100, 50];
            let packets = counts.iter().enumerate().map(|(number, &count)| {
                let mut packets = random_packets(count, (round * 8 + number) as u32);
                packets[count / 2] = Vec::new();
                packets
            });
            let mut packets: Vec<_> = packets.collect();
            // A string at each byte, one that lies across two packets, and one at the end of all.
            packets[1] = vec![vec![b'd'; 2048]; 99];
            packets[3] = [&b"xa"[..], b"bc", b"xyzabc"].map(<[u8]>::to_vec).to_vec();
            packets[4] = vec![Vec::new(); 64];
            let buffers: Vec<Vec<&[u8]>> =
                packets.iter().map(|packets| packets.iter().map(|packet| &packet[..]).collect()).collect();
            let all = found(dev, &chain, sets, 100, &buffers);
            for (packets, found) in packets.iter().zip(&all) {
                let (found, count) = (&found[..], packets.len());
                let (strings, found) = found.split_at(2 * count);
                let (lens, found) = found.split_at(count);
                let (automaton, found) = found.split_at(2 * count);
                let (short, skipped) = found.split_at(count);
                let expected = expected(packets);
                assert_eq!(strings, expected);
                assert_eq!(automaton, expected);
                assert!(short.iter().eq(expected.iter().step_by(2)));
                assert!(lens.iter().zip(packets).all(|(&len, packet)| len as usize == packet.len()));
                let behind = |packet: &Vec<u8>| packet.get(3..).unwrap_or_default().to_ascii_lowercase();
                let behind: Vec<_> = packets.iter().map(behind).collect();
                let words = super::expected(&behind);
                let words =
                    words.chunks(2).flat_map(|word| [word[0], if word[0] > 0 { word[1] + 3 } else { 0 }]);
                assert_eq!(skipped, words.collect::<Vec<_>>());
            }
        }
    }
    for id in chain {
        works(nca_remove_network_function(id));
    }
}

/// Of all buffers of a ring, over and over: what one buffer had leaves nothing for the next one.
#[test]
fn buffers_on_devices_come_in_order_and_are_used_again() {
    static TOLD: Mutex<Vec<c_int>> = Mutex::new(Vec::new());
    unsafe extern "C" fn notify(_: c_int, buffer: c_int, _: c_int) -> c_int {
        TOLD.lock().expect("no panic").push(buffer);
        0
    }
    works(add_strings(1310, c"strings", 8));
    for dev in accelerators() {
        TOLD.lock().expect("no panic").clear();
        let s = works(stream(5, 80, Some(notify), &[1310], &[1], dev));
        let mut told = Vec::new();
        for round in 0..12 {
            works(nca_set_queues(s, 1 + round % 3));
            let all: Vec<_> = (0..5)
                .map(|step| {
                    let (buffer, seed) = (step * 2 % 5, (round * 5 + step) as u32);
                    let packets = random_packets(1 + seed as usize * 13 % 80, seed);
                    for packet in &packets {
                        works(add(s, buffer, &[packet]));
                    }
                    works(nca_buffer_ready(s, buffer));
                    told.push(buffer);
                    (buffer, packets)
                })
                .collect();
            for (buffer, packets) in all {
                works(nca_wait(s, buffer, 60_000));
                assert_eq!(results(s, buffer), Ok(expected(&packets)));
            }
        }
        works(nca_traffic_stream_close(s));
        assert_eq!(*TOLD.lock().expect("no panic"), told);
    }
    works(nca_remove_network_function(1310));
}

#[test]
fn parts_of_a_search_on_a_device_are_left_out() {
    let (copies, kernels) = (nca_part::NCA_COPIES as c_int, nca_part::NCA_KERNELS as c_int);
    let folder = tempfile::tempdir().expect("a folder");
    works(add_strings(1320, c"strings", 4));
    add_acl(1321, folder.path(), "deny udp from any to any\n", "", 0, 4);
    let (one, other) = (packet(53, b"xabc"), packet(53, b"x"));
    let packets = [&one[..], &other[..]];
    for dev in accelerators() {
        let s = works(stream(1, 100, None, &[1320, 1321], &[1, 1], dev));
        works(nca_leave_out(s, kernels));
        assert_eq!(run_buffer(s, 0, &packets), [0; 4], "no kernel has run");
        works(nca_leave_out(s, copies));
        assert_eq!(run_buffer(s, 0, &packets), [0; 4], "no result was copied");
        works(nca_leave_out(s, 0));
        // An address has the byte of "d", and comes first.
        assert_eq!(run_buffer(s, 0, &packets), [4, 4, 3, 3], "all is done");
        works(nca_traffic_stream_close(s));
    }
    works(nca_remove_network_function(1320));
    works(nca_remove_network_function(1321));
}

/// What offsets are in a buffer's memory once it is ready leads a device nowhere: no results but these are of meaning then.
#[test]
fn offsets_that_change_too_late_are_harmless_on_devices() {
    works(add_strings(1330, c"strings", 8));
    for dev in accelerators() {
        let s = works(stream(1, 100, None, &[1330], &[1], dev));
        let mut memory = nca_memory { bytes: null_mut(), offsets: null_mut(), size: 0, max_packets: 0 };
        // SAFETY: there is room.
        works(unsafe { nca_buffer_memory(s, 0, &raw mut memory) });
        for value in [0, 1, 500, u32::MAX] {
            works(add(s, 0, &[b"abc", b"d", b"xxabc"]));
            // SAFETY: there are as many offsets, and they are the program's.
            unsafe { std::slice::from_raw_parts_mut(memory.offsets, 101)[1..].fill(value) };
            works(nca_buffer_ready(s, 0));
            works(nca_wait(s, 0, -1));
            assert_eq!(results(s, 0).expect("results").len(), 6);
        }
        assert_eq!(run_buffer(s, 0, &[b"abc", b"d"]), [1, 3, 4, 1], "the stream goes on");
        works(nca_traffic_stream_close(s));
    }
    works(nca_remove_network_function(1330));
}

/// Devices count bytes in 28 bits.
#[test]
fn buffers_that_are_too_large_for_devices_are_searched_by_cores() {
    if !packetloom_testing::sweep("buffers of 256 MiB") {
        return;
    }
    const LEN: u32 = 1 << 28;
    works(add_strings(1335, c"strings", 8));
    for dev in accelerators() {
        let s = works(stream(1, LEN as c_int / 2048 + 1, None, &[1335], &[1], dev));
        let mut memory = nca_memory { bytes: null_mut(), offsets: null_mut(), size: 0, max_packets: 0 };
        // SAFETY: there is room.
        works(unsafe { nca_buffer_memory(s, 0, &raw mut memory) });
        // SAFETY: the memory is the program's until the buffer is ready, and has as many offsets and bytes.
        unsafe {
            let first = memory.offsets.read();
            memory.offsets.add(1).write(first + LEN);
            memory.offsets.add(2).write(first + LEN + 4);
            memory.bytes.add((first + LEN) as usize).copy_from_nonoverlapping(b"xabc".as_ptr(), 4);
        }
        works(nca_set_packets(s, 0, 2));
        works(nca_buffer_ready(s, 0));
        works(nca_wait(s, 0, -1));
        assert_eq!(results(s, 0), Ok(vec![0, 0, 1, 4]));
        assert_eq!(run_buffer(s, 0, &[b"", b"abc"]), [0, 0, 1, 3], "and smaller ones by the device");
        works(nca_traffic_stream_close(s));
    }
    works(nca_remove_network_function(1335));
}

/// The frames of a capture.
fn frames(path: &std::path::Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(path, &Stop::default()).expect("a capture");
    let (mut batch, mut frames) = (Batch::new(256), Vec::new());
    while reader.fill(&mut batch).expect("it is read") {
        frames.extend(batch.each_bytes().map(<[u8]>::to_vec));
    }
    frames
}

#[test]
fn functions_find_the_same_in_a_capture_on_devices_and_on_cores() {
    let capture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/edge/edge.pcap");
    let frames = frames(&capture);
    assert!(frames.len() > 5000);
    let buffers: Vec<Vec<&[u8]>> =
        frames.chunks(700).map(|frames| frames.iter().map(|frame| &frame[..]).collect()).collect();
    works(add_strings(1340, c"strings", 8));
    works(add_strings(1341, c"aho-corasick", 8));
    let keys = CString::new(format!(
        "format = \"lines\"\nskip = 34\npatterns = {:?}",
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")
    ));
    add_with_keys(1342, c"strings", &keys.expect("no NUL"), 8);
    let (chain, sets) = ([1340, 1341, 1342], [1, 1, 2]);
    let on_cores = found(CPU, &chain, &sets, 700, &buffers);
    for (packets, found) in buffers.iter().zip(&on_cores) {
        let packets: Vec<_> = packets.iter().map(|packet| packet.to_vec()).collect();
        assert_eq!(found[..2 * packets.len()], expected(&packets));
    }
    for dev in accelerators() {
        assert!(found(dev, &chain, &sets, 700, &buffers) == on_cores, "{dev:?}");
    }
    for id in chain {
        works(nca_remove_network_function(id));
    }
}

/// Adds an ACL with these rules and keys.
fn add_acl(id: c_int, folder: &std::path::Path, rules: &str, keys: &str, link_type: u32, result_size: c_int) {
    static SAID: Mutex<Option<(CString, u32)>> = Mutex::new(None);
    static ONE: Mutex<()> = Mutex::new(());
    unsafe extern "C" fn init(_: c_int, params: *mut nca_function_params) -> c_int {
        let said = SAID.lock().expect("no panic");
        let (config, link_type) = said.as_ref().expect("set before");
        // SAFETY: the library passes parameters that are to be filled in; the text stays until the function was added.
        unsafe {
            (*params).config = config.as_ptr();
            (*params).link_type = *link_type;
        }
        0
    }
    let file = folder.join(format!("{id}.rules"));
    std::fs::write(&file, rules).expect("written");
    let config = CString::new(format!("rules = {file:?}\n{keys}")).expect("no NUL");
    let _one = ONE.lock().expect("no panic");
    *SAID.lock().expect("no panic") = Some((config, link_type));
    // SAFETY: texts, and a callback of its type.
    works(unsafe { nca_add_network_function(id, Some(init), null(), c"acl".as_ptr(), None, result_size) });
}

const ACL: &str = "permit udp from any to any port 53 mark 7
deny tcp from any to any port 0-1023 flags S/SA
permit tcp from 10.0.0.0/8 to any mark 3
deny any from any to any fragment any
deny udp from any port 1000-4000 to any mark 9
deny icmpv6 from any to any
permit any from any to any mark 4294967295
";

/// Frames that are cut, changed, or of no kind at all, beside good ones.
fn damaged(frames: &[Vec<u8>], seed: u32) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut next = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    let mut damage = |frame: &Vec<u8>| {
        let mut frame = frame.clone();
        match next(6) {
            0 => frame.truncate(next(frame.len() + 1)),
            1 => frame.truncate(next(60).min(frame.len())),
            2 | 3 if !frame.is_empty() => {
                let at = next(frame.len().min(64));
                frame[at] = next(256) as u8;
            }
            _ => {}
        }
        frame
    };
    frames.iter().map(&mut damage).collect()
}

#[test]
fn acls_on_devices_say_what_they_say_on_cores() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/edge");
    let edge = std::fs::read_to_string(examples.join("edge.rules")).expect("rules");
    add_acl(1350, folder.path(), ACL, "", 0, 8);
    add_acl(1351, folder.path(), &edge, "[run]\nnon_ip = \"drop\"\nmalformed = \"drop\"", 0, 4);
    add_acl(1352, folder.path(), "deny any from 10.0.0.0/9 to any mark 5\n", "default = \"permit\"", 101, 8);
    let log = format!("log = {:?}", folder.path().join("log"));
    // Those with a log, though no rule has it, or that know of connections, stay on cores; in the same stream.
    add_acl(1353, folder.path(), "reflect udp from any to any\n", "", 0, 8);
    add_acl(1355, folder.path(), "permit any from any to any\n", &log, 0, 8);
    works(add_strings(1354, c"strings", 8));
    let mut captures = vec![examples.join("edge.pcap")];
    if let Some(corpus) = packetloom_testing::corpus("captures") {
        let all = std::fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path());
        let is_small = |path: &std::path::PathBuf| {
            path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
                && std::fs::metadata(path).is_ok_and(|data| data.len() < 200_000)
        };
        captures.extend(all.filter(is_small));
    }
    let (chain, sets) = ([1350, 1351, 1352, 1353, 1354, 1355], [1, 1, 2, 1, 2, 2]);
    let mut all: Vec<Vec<u8>> = captures.iter().flat_map(|path| frames(path)).collect();
    all.retain(|frame| frame.len() <= 2048);
    all.extend(damaged(&all, 3));
    // A long chain of IPv6 headers, of which a device sees the beginning alone.
    let mut long = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 168, 0, 64];
    long.extend([0xfd; 32]);
    (0..20).for_each(|header| long.extend([if header == 19 { 17 } else { 0 }, 0, 1, 4, 0, 0, 0, 0]));
    long.extend([0x10, 0, 0, 53, 0, 8, 0, 0]);
    all.push(long);
    all.push(Vec::new());
    let buffers: Vec<Vec<&[u8]>> =
        all.chunks(900).map(|frames| frames.iter().map(|frame| &frame[..]).collect()).collect();
    // Those of the function that keeps connections depend on what came before: one buffer is judged after the other.
    let on_cores = found(nca_dev { dev_type: 0, num_devices: 1 }, &chain, &sets, 900, &buffers);
    let verdicts: std::collections::BTreeSet<_> = buffers
        .iter()
        .zip(&on_cores)
        .flat_map(|(packets, found)| found[..2 * packets.len()].chunks(2))
        .collect();
    assert!(verdicts.len() > 4, "{verdicts:?}");
    for dev in accelerators() {
        let on_device = found(dev, &chain, &sets, 900, &buffers);
        for (buffer, (on_device, on_cores)) in on_device.iter().zip(&on_cores).enumerate() {
            let differs = on_device.iter().zip(on_cores).position(|(a, b)| a != b);
            assert_eq!(
                differs,
                None,
                "word {differs:?} of buffer {buffer} with {} packets",
                buffers[buffer].len()
            );
        }
    }
    for id in chain {
        works(nca_remove_network_function(id));
    }
}
