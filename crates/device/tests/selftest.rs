//! The self-test passes on every device that is here, and tells what does not work where something does not.

use packetloom_device::{Cache, Device, Id, list, selftest};

fn passes(id: Id) {
    let device = Device::open(id, Cache::none()).expect("a device that can be opened");
    let checks = selftest::run(&device);
    println!("{id}: {:?}", device.description());
    for check in &checks {
        println!("{id}: {}: {:?}", check.name, check.outcome);
    }
    assert_eq!(checks.len(), 7);
    assert!(checks.iter().all(|check| check.outcome.is_ok()), "{id}: {checks:?}");
}

#[test]
fn the_host_works() {
    passes(Id::Host);
}

#[test]
fn every_device_works() {
    let (ids, missing) = list();
    for error in missing {
        println!("{error}");
    }
    if ids.is_empty() {
        println!("no devices here");
    }
    ids.into_iter().for_each(passes);
}
