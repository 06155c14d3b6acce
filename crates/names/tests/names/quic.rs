//! Server names of QUIC.

use packetloom_names::{GiveUp, NameKind};

use crate::encode::{Initial, QUIC_DRAFT_29, QUIC_V1, QUIC_V2, crypto, handshake, hello_with, hex, varint};
use crate::watch::{End, udp};

/// The protected Initial packets of a client in RFC 9001 appendix A.2 and RFC 9369 appendix A.2: hellos to example.com.
const RFC_9001: &str = "
    c000000001088394c8f03e5157080000 449e7b9aec34d1b1c98dd7689fb8ec11
    d242b123dc9bd8bab936b47d92ec356c 0bab7df5976d27cd449f63300099f399
    1c260ec4c60d17b31f8429157bb35a12 82a643a8d2262cad67500cadb8e7378c
    8eb7539ec4d4905fed1bee1fc8aafba1 7c750e2c7ace01e6005f80fcb7df6212
    30c83711b39343fa028cea7f7fb5ff89 eac2308249a02252155e2347b63d58c5
    457afd84d05dfffdb20392844ae81215 4682e9cf012f9021a6f0be17ddd0c208
    4dce25ff9b06cde535d0f920a2db1bf3 62c23e596d11a4f5a6cf3948838a3aec
    4e15daf8500a6ef69ec4e3feb6b1d98e 610ac8b7ec3faf6ad760b7bad1db4ba3
    485e8a94dc250ae3fdb41ed15fb6a8e5 eba0fc3dd60bc8e30c5c4287e53805db
    059ae0648db2f64264ed5e39be2e20d8 2df566da8dd5998ccabdae053060ae6c
    7b4378e846d29f37ed7b4ea9ec5d82e7 961b7f25a9323851f681d582363aa5f8
    9937f5a67258bf63ad6f1a0b1d96dbd4 faddfcefc5266ba6611722395c906556
    be52afe3f565636ad1b17d508b73d874 3eeb524be22b3dcbc2c7468d54119c74
    68449a13d8e3b95811a198f3491de3e7 fe942b330407abf82a4ed7c1b311663a
    c69890f4157015853d91e923037c227a 33cdd5ec281ca3f79c44546b9d90ca00
    f064c99e3dd97911d39fe9c5d0b23a22 9a234cb36186c4819e8b9c5927726632
    291d6a418211cc2962e20fe47feb3edf 330f2c603a9d48c0fcb5699dbfe58964
    25c5bac4aee82e57a85aaf4e2513e4f0 5796b07ba2ee47d80506f8d2c25e50fd
    14de71e6c418559302f939b0e1abd576 f279c4b2e0feb85c1f28ff18f58891ff
    ef132eef2fa09346aee33c28eb130ff2 8f5b766953334113211996d20011a198
    e3fc433f9f2541010ae17c1bf202580f 6047472fb36857fe843b19f5984009dd
    c324044e847a4f4a0ab34f719595de37 252d6235365e9b84392b061085349d73
    203a4a13e96f5432ec0fd4a1ee65accd d5e3904df54c1da510b0ff20dcc0c77f
    cb2c0e0eb605cb0504db87632cf3d8b4 dae6e705769d1de354270123cb11450e
    fc60ac47683d7b8d0f811365565fd98c 4c8eb936bcab8d069fc33bd801b03ade
    a2e1fbc5aa463d08ca19896d2bf59a07 1b851e6c239052172f296bfb5e724047
    90a2181014f3b94a4e97d117b4381303 68cc39dbb2d198065ae3986547926cd2
    162f40a29f0c3c8745c0f50fba3852e5 66d44575c29d39a03f0cda721984b6f4
    40591f355e12d439ff150aab7613499d bd49adabc8676eef023b15b65bfc5ca0
    6948109f23f350db82123535eb8a7433 bdabcb909271a6ecbcb58b936a88cd4e
    8f2e6ff5800175f113253d8fa9ca8885 c2f552e657dc603f252e1a8e308f76f0
    be79e2fb8f5d5fbbe2e30ecadd220723 c8c0aea8078cdfcb3868263ff8f09400
    54da48781893a7e49ad5aff4af300cd8 04a6b6279ab3ff3afb64491c85194aab
    760d58a606654f9f4400e8b38591356f bf6425aca26dc85244259ff2b19c41b9
    f96f3ca9ec1dde434da7d2d392b905dd f3d1f9af93d1af5950bd493f5aa731b4
    056df31bd267b6b90a079831aaf579be 0a39013137aac6d404f518cfd4684064
    7e78bfe706ca4cf5e9c5453e9f7cfd2b 8b4c8d169a44e55c88d4a9a7f9474241
    e221af44860018ab0856972e194cd934
";
const RFC_9369: &str = "
    d76b3343cf088394c8f03e5157080000 449ea0c95e82ffe67b6abcdb4298b485
    dd04de806071bf03dceebfa162e75d6c 96058bdbfb127cdfcbf903388e99ad04
    9f9a3dd4425ae4d0992cfff18ecf0fdb 5a842d09747052f17ac2053d21f57c5d
    250f2c4f0e0202b70785b7946e992e58 a59ac52dea6774d4f03b55545243cf1a
    12834e3f249a78d395e0d18f4d766004 f1a2674802a747eaa901c3f10cda5500
    cb9122faa9f1df66c392079a1b40f0de 1c6054196a11cbea40afb6ef5253cd68
    18f6625efce3b6def6ba7e4b37a40f77 32e093daa7d52190935b8da58976ff33
    12ae50b187c1433c0f028edcc4c2838b 6a9bfc226ca4b4530e7a4ccee1bfa2a3
    d396ae5a3fb512384b2fdd851f784a65 e03f2c4fbe11a53c7777c023462239dd
    6f7521a3f6c7d5dd3ec9b3f233773d4b 46d23cc375eb198c63301c21801f6520
    bcfb7966fc49b393f0061d974a2706df 8c4a9449f11d7f3d2dcbb90c6b877045
    636e7c0c0fe4eb0f697545460c806910 d2c355f1d253bc9d2452aaa549e27a1f
    ac7cf4ed77f322e8fa894b6a83810a34 b361901751a6f5eb65a0326e07de7c12
    16ccce2d0193f958bb3850a833f7ae43 2b65bc5a53975c155aa4bcb4f7b2c4e5
    4df16efaf6ddea94e2c50b4cd1dfe060 17e0e9d02900cffe1935e0491d77ffb4
    fdf85290fdd893d577b1131a610ef6a5 c32b2ee0293617a37cbb08b847741c3b
    8017c25ca9052ca1079d8b78aebd4787 6d330a30f6a8c6d61dd1ab5589329de7
    14d19d61370f8149748c72f132f0fc99 f34d766c6938597040d8f9e2bb522ff9
    9c63a344d6a2ae8aa8e51b7b90a4a806 105fcbca31506c446151adfeceb51b91
    abfe43960977c87471cf9ad4074d30e1 0d6a7f03c63bd5d4317f68ff325ba3bd
    80bf4dc8b52a0ba031758022eb025cdd 770b44d6d6cf0670f4e990b22347a7db
    848265e3e5eb72dfe8299ad7481a4083 22cac55786e52f633b2fb6b614eaed18
    d703dd84045a274ae8bfa73379661388 d6991fe39b0d93debb41700b41f90a15
    c4d526250235ddcd6776fc77bc97e7a4 17ebcb31600d01e57f32162a8560cacc
    7e27a096d37a1a86952ec71bd89a3e9a 30a2a26162984d7740f81193e8238e61
    f6b5b984d4d3dfa033c1bb7e4f0037fe bf406d91c0dccf32acf423cfa1e70710
    10d3f270121b493ce85054ef58bada42 310138fe081adb04e2bd901f2f13458b
    3d6758158197107c14ebb193230cd115 7380aa79cae1374a7c1e5bbcb80ee23e
    06ebfde206bfb0fcbc0edc4ebec30966 1bdd908d532eb0c6adc38b7ca7331dce
    8dfce39ab71e7c32d318d136b6100671 a1ae6a6600e3899f31f0eed19e3417d1
    34b90c9058f8632c798d4490da498730 7cba922d61c39805d072b589bd52fdf1
    e86215c2d54e6670e07383a27bbffb5a ddf47d66aa85a0c6f9f32e59d85a44dd
    5d3b22dc2be80919b490437ae4f36a0a e55edf1d0b5cb4e9a3ecabee93dfc6e3
    8d209d0fa6536d27a5d6fbb17641cde2 7525d61093f1b28072d111b2b4ae5f89
    d5974ee12e5cf7d5da4d6a31123041f3 3e61407e76cffcdcfd7e19ba58cf4b53
    6f4c4938ae79324dc402894b44faf8af bab35282ab659d13c93f70412e85cb19
    9a37ddec600545473cfb5a05e08d0b20 9973b2172b4d21fb69745a262ccde96b
    a18b2faa745b6fe189cf772a9f84cbfc
";

const FIRST: Initial<'static> = Initial::FIRST;

/// How a connection's datagrams to port 443 end.
fn server(datagrams: &[Vec<u8>]) -> End {
    udp(443, datagrams)
}

fn is_found(end: &End, name: &str) -> bool {
    end.text(NameKind::QuicServer) == Some(name)
}

#[track_caller]
fn assert_found(datagrams: &[Vec<u8>], name: &str) {
    let end = server(datagrams);
    assert!(is_found(&end, name), "{end:?}");
}

/// A message's CRYPTO frames, of up to `len` bytes each.
fn pieces(message: &[u8], len: usize) -> Vec<Vec<u8>> {
    (0..message.len()).step_by(len).map(|at| crypto(message, at..message.len().min(at + len))).collect()
}

#[test]
fn the_examples_of_the_rfcs_are_opened() {
    for packet in [RFC_9001, RFC_9369].map(hex) {
        assert_eq!(packet.len(), 1200);
        assert_found(std::slice::from_ref(&packet), "example.com");
        // Any bit that is wrong.
        for bit in (0..packet.len() * 8).step_by(37) {
            let mut wrong = packet.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(server(&[wrong]), End::NoName, "bit {bit}");
        }
        for len in 0..packet.len() {
            assert_eq!(server(&[packet[..len].to_vec()]), End::NoName, "{len} bytes");
        }
    }
}

#[test]
fn the_encoder_of_these_tests_makes_the_examples() {
    let hello = "
        060040f1010000ed0303ebf8fa56f129 39b9584a3896472ec40bb863cfd3e868
        04fe3a47f06a2b69484c000004130113 02010000c000000010000e00000b6578
        616d706c652e636f6dff01000100000a 00080006001d00170018001000070005
        04616c706e0005000501000000000033 00260024001d00209370b2c9caa47fba
        baf4559fedba753de171fa71f50f1ce1 5d43e994ec74d748002b000302030400
        0d0010000e0403050306030203080408 050806002d00020101001c0002400100
        3900320408ffffffffffffffff050480 00ffff07048000ffff08011001048000
        75300901100f088394c8f03e51570806 048000ffff";
    // Their headers differ from the encoder's in the source's ID and how long the token's length is, and so does what is protected: the
    // frames are the same.
    for version in [QUIC_V1, QUIC_V2] {
        let packet = Initial { version, number: 2, number_len: 4, ..FIRST }.datagram(&hex(hello));
        assert_found(&[packet], "example.com");
    }
}

#[test]
fn versions_and_packet_numbers_are_read() {
    let message = hello_with("a.b", 0);
    for version in [QUIC_V1, QUIC_V2, QUIC_DRAFT_29] {
        for number_len in 1..=4 {
            let packet = Initial { version, number: 77, number_len, ..FIRST };
            assert_found(&[packet.datagram(&crypto(&message, 0..message.len()))], "a.b");
        }
    }
    for version in [0, 2, 0xff00_001c, 0xff00_0023, 0x0a0a_0a0a] {
        let packet = Initial { version, ..FIRST };
        assert_eq!(server(&[packet.datagram(&crypto(&message, 0..message.len()))]), End::NoName);
    }
}

#[test]
fn frames_come_in_any_order_over_several_datagrams() {
    let message = hello_with("www.example.com", 1700);
    let mut frames = pieces(&message, 97);
    let half = frames.len() / 2;
    // Backwards, between other frames, some again.
    frames.reverse();
    frames.insert(3, vec![1, 0, 0, 2, 0, 0, 2, 0, 1, 1, 1, 1]);
    frames.insert(7, vec![3, 0, 0, 0, 0, 1, 2, 3]);
    frames.insert(9, frames[0].clone());
    frames.insert(2, [&[0x1c, 0, 0][..], &varint(3), b"bye"].concat());
    let [first, second] = [&frames[..half], &frames[half..]].map(<[_]>::concat);
    let datagram = |number, frames: &[u8]| Initial { number, ..FIRST }.datagram(frames);
    assert_eq!(server(&[datagram(0, &first)]), End::Open);
    assert_eq!(server(&[datagram(1, &second)]), End::Open);
    assert_found(&[datagram(0, &first), datagram(1, &second)], "www.example.com");
    assert_found(&[datagram(1, &second), datagram(1, &second), datagram(0, &first)], "www.example.com");
    // After the server's answer, its ID stands in the header; the keys stay.
    let answered = Initial { destination: b"server", number: 1, ..FIRST };
    assert_found(&[datagram(0, &first), answered.datagram(&second)], "www.example.com");
}

#[test]
fn packets_share_datagrams() {
    let message = hello_with("www.example.com", 200);
    let frames = pieces(&message, 150);
    let [a, b, ..] = &frames[..] else { panic!() };
    let sealed = |number, frames: &[u8]| Initial { number, ..FIRST }.seal("client", frames);
    // Early data and a handshake packet, whose contents nobody can read, and a short header at the end.
    let other =
        |first: u8| [&[first, 0, 0, 0, 1, 8], FIRST.destination, &[0][..], &varint(50), &[0xaa; 50]].concat();
    let (early, handshake) = (other(0xd0), other(0xe0));
    let rest = frames[2..].concat();
    let datagram =
        [sealed(0, a), early.clone(), sealed(1, b), handshake.clone(), sealed(2, &rest), vec![0x40; 30]];
    assert_found(&[datagram.concat()], "www.example.com");
    // Early data that came first.
    assert_eq!(server(std::slice::from_ref(&early)), End::Open);
    assert_found(&[early, datagram.concat()], "www.example.com");
    assert_eq!(server(&[handshake]), End::NoName);
    // A packet that is cut off does not count, those before it do.
    let mut cut = [sealed(0, a), sealed(1, b)].concat();
    cut.pop();
    assert_found(&[cut, sealed(2, &frames[1..].concat())], "www.example.com");
}

#[test]
fn a_retry_changes_the_keys() {
    let message = hello_with("www.example.com", 1500);
    let frames = pieces(&message, 900);
    let first = FIRST.datagram(&frames[0]);
    let retried = Initial { key_id: b"retry", destination: b"retry", token: b"token", number: 1, ..FIRST };
    assert_found(
        &[first.clone(), retried.datagram(&frames[0]), retried.datagram(&frames[1])],
        "www.example.com",
    );
    // What came with other keys is not mixed with it.
    assert_eq!(server(&[first, retried.datagram(&frames[1])]), End::Open);
    // Without what was before.
    assert_found(&[retried.datagram(&frames[0]), retried.datagram(&frames[1])], "www.example.com");
}

#[test]
fn servers_have_no_names() {
    let message = hello_with("a", 0);
    let frames = crypto(&message, 0..message.len());
    assert_eq!(server(&[FIRST.seal("server", &frames)]), End::NoName);
    // A client's first ID is not that short.
    let short = Initial { key_id: b"seven.7", destination: b"seven.7", ..FIRST };
    assert_eq!(server(&[short.datagram(&frames)]), End::NoName);
    let answer = handshake(2, &[0; 60]);
    assert_eq!(server(&[FIRST.datagram(&crypto(&answer, 0..answer.len()))]), End::NoName);
}

#[test]
fn what_is_no_frame_ends_a_packet() {
    let message = hello_with("a", 0);
    let frames = crypto(&message, 0..message.len());
    assert_found(&[FIRST.datagram(&[&frames[..], &[8]].concat())], "a");
    assert_eq!(server(&[FIRST.datagram(&[&[8], &frames[..]].concat())]), End::Open);
    assert_eq!(server(&[FIRST.datagram(&[&[6, 0, 0x7f, 0xff], &frames[..]].concat())]), End::Open);
    let huge = [&[6][..], &[0xff; 8], &[1, 0]].concat();
    assert_eq!(server(&[FIRST.datagram(&huge)]), End::GaveUp(GiveUp::Length));
    assert_found(&[FIRST.datagram(&[huge, frames].concat())], "a");
}

#[test]
fn bounds_hold() {
    let message = hello_with("a", 17_000);
    let mut datagrams: Vec<_> = pieces(&message, 2000).iter().map(|frame| FIRST.datagram(frame)).collect();
    assert_eq!(server(&datagrams), End::GaveUp(GiveUp::Length));
    datagrams.truncate(8);
    assert_eq!(server(&datagrams), End::Open);
    // Many gaps.
    let every_other: Vec<_> = pieces(&message, 10).into_iter().skip(1).step_by(2).collect();
    assert_eq!(server(&[FIRST.datagram(&every_other[..64].concat())]), End::Open);
    assert_eq!(server(&[FIRST.datagram(&every_other[..65].concat())]), End::GaveUp(GiveUp::Pieces));
    // Many datagrams.
    let pings: Vec<_> = (0..16).map(|number| Initial { number, ..FIRST }.datagram(&[1])).collect();
    assert_eq!(server(&pings[..15]), End::Open);
    assert_eq!(server(&pings), End::GaveUp(GiveUp::Datagrams));
}
