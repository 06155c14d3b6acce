//! Hosts of HTTP requests.

use packetloom_names::{GiveUp, NameKind, behind_request};

use crate::watch::{End, check_stream, whole};

fn host(request: &str) -> Option<String> {
    match whole(80, request.as_bytes()) {
        End::Found(name) => {
            assert_eq!((name.kind, name.query_type), (NameKind::HttpHost, None));
            Some(name.text.into())
        }
        End::NoName | End::Open => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_behind_requests() {
    for (bytes, expected) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET", Some("GET")),
        ("a\n\nb", Some("b")),
        ("a\n\r\n", Some("")),
        ("a\r\n\r", None),
        ("a\r\nb\r\nc", None),
        ("\r\n\r\nx", Some("x")),
        ("", None),
        // Behind a body whose length is given.
        ("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET", Some("GET")),
        ("POST / HTTP/1.1\ncontent-length:4\t\n\nbody", Some("")),
        ("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET", Some("GET")),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nbody", None),
        ("a part\r\nContent-Length: 4\r\n\r\nbody\r\n", Some("\r\n")),
        ("POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbodyx", Some("x")),
        ("POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbodyxx", None),
        ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\nx", None),
        ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nxx", None),
        ("POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nx", None),
        ("POST / HTTP/1.1\r\nX-Content-Length: 4\r\n\r\nx", Some("x")),
        // In chunks, which come before a length.
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\nx",
            Some("x"),
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n",
            Some(""),
        ),
        // Only what ends with that coding has an end.
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabc\r\n0\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n\r\n", None),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n\r\n", None),
    ] {
        assert_eq!(behind_request(bytes.as_bytes()), expected.map(str::as_bytes), "{bytes:?}");
    }
}

#[test]
fn hosts_of_requests_are_found() {
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: a.b:8080\r\n\r\n", Some("a.b:8080")),
        ("GET / HTTP/1.0\nhOsT:a.b\n\n", Some("a.b")),
        ("POST /x y HTTP/1.1\r\nAccept: *\r\nHost: \t a.b \t\r\n", Some("a.b")),
        ("GET http://x.y/ HTTP/1.1\r\nHost: z\r\n\r\n", Some("z")),
        ("CONNECT x.y:443 HTTP/1.1\r\nHost: x.y:443\r\n\r\n", Some("x.y:443")),
        ("M-SEARCH * HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Some("a")),
        ("RPC_IN_DATA / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", Some("a")),
        ("GET / HTTP/1.1\r\nHost:\r\nHost: b\r\n\r\n", Some("b")),
        ("GET / HTTP/1.1\r\nHost: \u{fc}\0\\\r\n\r\n", Some("\u{fc}\\000\\\\")),
        // No field of that name, before the end of the head.
        ("GET / HTTP/1.1\r\nHost : a\r\n Host: b\r\nX-Host: c\r\nHosts: d\r\nHos\r\n\r\nHost: e\r\n", None),
        ("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n", None),
        // Not to the end of the line.
        ("GET / HTTP/1.1\r\nHost: a.b", None),
        ("GET / HTTP/1.1\r\nHost: a.b\r", None),
        // No requests of HTTP/1.
        ("HTTP/1.1 200 OK\r\nHost: a\r\n\r\n", None),
        ("PRI * HTTP/2.0\r\nHost: a\r\n\r\n", None),
        ("GET /\r\nHost: a\r\n\r\n", None),
        ("GET  HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("GET HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("GET / HTTP/1.x\r\nHost: a\r\n\r\n", None),
        ("GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n", None),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("OPTIONS sip:a SIP/2.0\r\nHost: a\r\n\r\n", None),
        ("METHODWITHMORETHAN24LETTERS / HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("METHODSWITHMANYMANYLETTERS / HTTP/1.1\r\nHost: a\r\n\r\n", None),
        ("ABCDEFGHIJKLMNOPQRSTUVWX / HTTP/1.1\r\nHost: a\r\n\r\n", Some("a")),
    ] {
        assert_eq!(host(request).as_deref(), expected, "{request:?}");
    }
}

#[test]
fn other_protocols_end_at_once() {
    for beginning in [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "220 mail ESMTP\r\n",
        "EHLO a\r\n",
        "HELP\r\n",
        "A\x01",
        "AB \0",
        "MZ\u{90}\0",
        "x",
    ] {
        assert_eq!(whole(80, beginning.as_bytes()), End::NoName, "{beginning:?}");
    }
    for beginning in ["G", "GET", "GET ", "GET /very/long", "GET / HTTP/1.1\r\nA: \x01"] {
        assert_eq!(whole(80, beginning.as_bytes()), End::Open, "{beginning:?}");
    }
}

#[test]
fn requests_are_cut_anywhere() {
    let request =
        b"GET /index.html HTTP/1.1\r\nUser-Agent: x\r\nHost: www.example.com\r\nAccept: */*\r\n\r\n";
    check_stream(8080, request, NameKind::HttpHost, "www.example.com");
}

#[test]
fn the_first_8_kib_count() {
    let request = |padding: usize| {
        format!("GET / HTTP/1.1\r\nCookie: {}\r\nHost: a\r\n\r\n", "c".repeat(padding)).into_bytes()
    };
    let fits = 8192 - request(0).len() + 2;
    assert!(matches!(whole(80, &request(fits)), End::Found(_)));
    assert_eq!(whole(80, &request(fits + 1)), End::GaveUp(GiveUp::Length));
}
