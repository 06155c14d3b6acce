//! `packetloom.h` is what cbindgen makes of the sources; with `PACKETLOOM_WRITE_HEADER=1` it is written.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("its settings");
    let builder = cbindgen::Builder::new().with_config(config).with_src(folder.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().expect("the sources are parsed").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    let path = folder.join("packetloom.h");
    if std::env::var_os("PACKETLOOM_WRITE_HEADER").is_some_and(|value| value == "1") {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == made,
        "packetloom.h is not that of the sources; write it with PACKETLOOM_WRITE_HEADER=1"
    );
}
