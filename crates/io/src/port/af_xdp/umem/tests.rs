use super::*;

const CHUNK: usize = 2_048;

/// Two interfaces, the first one with two queues.
fn umem() -> Arc<Umem> {
    let umem = Umem::new(CHUNK, &[(8, 2), (4, 2)]).expect("memory");
    assert_eq!(umem.divide(0, 2, 8).expect("divided"), 4);
    assert_eq!(umem.divide(1, 1, 8).expect("divided"), 4);
    umem
}

/// Takes the free chunks of a queue, as if the kernel got them.
fn take(pool: &QueuePool) -> Vec<u32> {
    let mut chunks = Vec::new();
    pool.take_free(&mut chunks);
    chunks
}

#[test]
fn what_lies_elsewhere_is_not_found() {
    let umem = umem();
    assert_eq!(umem.memory().1, 16 * CHUNK as u64);
    assert_eq!(umem.locate(2_048 + 256, 1_792), Some((1, 256)));
    let end = 16 * CHUNK as u64;
    for (address, len) in [(2_048 + 256, 1_793), (end, 0), (u64::MAX, 1), (1 << 40, 0), (0, usize::MAX)] {
        assert_eq!(umem.locate(address, len), None, "{len} at {address}");
    }
    assert_eq!(umem.locate(end - 1, 1), Some((15, 2_047)));
    assert_eq!(umem.address_of(&[1, 2, 3]), None);
}

#[test]
#[should_panic(expected = "for chunk 7")]
fn a_region_is_not_left() {
    umem().sends(0).expect("nobody has it").write(7, &[0; 2]);
}

#[test]
fn a_region_has_one_owner_at_a_time() {
    let umem = umem();
    let region = umem.sends(1).expect("nobody has it");
    assert_eq!((region.chunks(), umem.sends(1).is_none(), umem.sends(0).is_some()), (14..16, true, true));
    drop(region);
    assert!(umem.sends(1).is_some());
}

/// The bytes of a chunk are lent while it is held, and those alone.
#[test]
fn no_more_is_lent_than_is_held() {
    let umem = umem();
    let pool = umem.pool(0, 1).expect("nobody uses it");
    assert_eq!(take(&pool), [7, 6, 5, 4]);
    umem.write_as_kernel(umem.address(5) + 256, b"a frame");
    let mut lent = Lent::new(std::slice::from_ref(&umem));
    let at = umem.address(5) + 256;
    assert_eq!(lent.get(at, 7), None);
    assert_eq!(lent.hold(0, (5, 256, 7)), b"a frame");
    lent.count(0, &pool);
    assert_eq!((umem.away(5), pool.room()), ((true, None), 1));
    let mut lent = lent.with_copies(Some(Arc::new(b"a copy".to_vec())));
    assert_eq!(lent.get(at, 7), Some(&b"a frame"[..]));
    assert_eq!(lent.get(at, 1_792).map(<[u8]>::len), Some(1_792));
    let copies = lent.copies_begin();
    assert_eq!(lent.get(copies + 2, 4), Some(&b"copy"[..]));
    for (offset, len) in
        [(at, 1_793), (at - 257, 1), (at + 1_792, 1), (copies + 2, 5), (copies - 1, 1), (u64::MAX, 1)]
    {
        assert_eq!(lent.get(offset, len), None, "{len} at {offset}");
    }
    // A memory of another number, and another loan, have nothing of it.
    assert_eq!((lent.get(copies + at, 7), lent.offset(0, 5, 256)), (None, at));
    assert_eq!(Lent::new(std::slice::from_ref(&umem)).get(at, 7), None);
    lent.get_mut(at, 7).expect("nobody else has it")[0] = b'A';
    assert_eq!(lent.get_mut(copies, 1), None, "others may have copies");
    assert_eq!(umem.address_of(lent.get(at, 7).expect("held")), Some(at));
    // While it is on its way it is not changed.
    assert!(umem.account().send(5, 1) && !umem.account().send(5, 0), "by one interface");
    assert_eq!(lent.get_mut(at, 7), None);
    assert_eq!(lent.get(at, 7), Some(&b"A frame"[..]));
    assert!(
        !umem.account().complete(5, 0) && umem.account().complete(5, 1) && !umem.account().complete(5, 1)
    );
    assert!(lent.get_mut(at, 7).is_some() && umem.free(0) == [3, 2, 1, 0]);
    drop(lent);
    assert_eq!((take(&pool), umem.away(5), pool.room()), (vec![5], (false, None), 2));
}

/// Frames of several memories are in one loan.
#[test]
fn memories_are_told_apart() {
    let memories = [umem(), umem()];
    let pools = memories.each_ref().map(|umem| umem.pool(1, 0).expect("nobody uses it"));
    let mut lent = Lent::new(&memories).with_copies(Some(Arc::new(vec![9; 60])));
    for (part, (umem, pool)) in memories.iter().zip(&pools).enumerate() {
        take(pool);
        assert_eq!((lent.part(umem), lent.another().part(umem)), (Some(part), Some(part)));
        umem.write_as_kernel(umem.address(11), &[part as u8; 60]);
        lent.hold(part, (11, 0, 60));
        lent.count(part, pool);
    }
    for part in 0..2 {
        assert_eq!(lent.get(lent.offset(part, 11, 0), 60), Some(&[part as u8; 60][..]));
        assert_eq!(lent.get(lent.offset(part, 10, 0), 60), None);
    }
    assert_eq!(lent.get(lent.copies_begin(), 60), Some(&[9; 60][..]));
    assert_eq!(lent.part(&umem()), None);
    drop(lent);
    assert!(memories.iter().all(|umem| umem.free(1) == [11]));
}

/// A chunk is free once neither a batch nor an interface has it, whichever is done first.
#[test]
fn chunks_are_free_when_nobody_has_them() {
    let umem = umem();
    let pool = umem.pool(1, 0).expect("nobody uses it");
    assert_eq!(take(&pool), [13, 12, 11, 10]);
    let mut lent = Lent::new(std::slice::from_ref(&umem));
    lent.hold(0, (10, 0, 60));
    lent.hold(0, (11, 0, 60));
    lent.count(0, &pool);
    assert_eq!(pool.room(), 0);
    assert!(umem.account().send(10, 0) && umem.account().send(11, 0));
    assert!(!umem.account().send(12, 0), "the kernel has it");
    assert!(umem.account().complete(10, 0) && umem.free(1).is_empty());
    drop(lent);
    assert_eq!((umem.free(1), pool.room()), (vec![10], 1));
    assert!(umem.account().complete(11, 0));
    assert_eq!((umem.free(1), pool.room()), (vec![10, 11], 2));
}

/// A queue that is closed gives back what the kernel had; what is away comes back later, to the queues that there are then.
#[test]
fn an_interface_comes_back_with_other_queues() {
    let umem = umem();
    let pools = [0, 1].map(|queue| umem.pool(0, queue).expect("nobody uses it"));
    pools.iter().for_each(|pool| assert_eq!(take(pool).len(), 4));
    let mut lent = Lent::new(std::slice::from_ref(&umem));
    lent.hold(0, (1, 0, 60));
    lent.count(0, &pools[0]);
    lent.hold(0, (6, 0, 60));
    lent.count(0, &pools[1]);
    assert!(umem.divide(0, 1, 8).is_err(), "it is in use");
    drop(pools);
    assert_eq!(umem.divide(0, 1, 8).expect("divided"), 8);
    assert_eq!(umem.free(0), [7, 5, 4, 3, 2, 0]);
    let pool = umem.pool(0, 0).expect("nobody uses it");
    assert_eq!((pool.room(), umem.pool(0, 0).is_none(), umem.pool(0, 1).is_none()), (2, true, true));
    drop(pool);
    drop(lent);
    assert_eq!(umem.free(0).len(), 8);
    // Some are left over.
    assert_eq!(umem.divide(0, 3, 8).expect("divided"), 2);
    assert_eq!(umem.free(0).len(), 6);
    assert!(umem.divide(0, 9, 8).is_err(), "there are not as many");
    assert_eq!(umem.divide(0, 1, 4).expect("divided"), 4);
    assert_eq!(umem.free(0), [3, 2, 1, 0]);
}

/// What was on its way by an interface that goes is free.
#[test]
fn nothing_is_on_its_way_by_an_interface_that_is_gone() {
    let umem = umem();
    let (pool, region) = (umem.pool(0, 0).expect("nobody uses it"), umem.sends(1).expect("nobody has it"));
    take(&pool);
    let mut lent = Lent::new(std::slice::from_ref(&umem));
    lent.hold(0, (0, 0, 60));
    lent.hold(0, (1, 0, 60));
    lent.count(0, &pool);
    assert!(umem.account().send(0, 1) && umem.account().send(1, 0));
    drop(lent);
    drop(region);
    assert_eq!((umem.free(0), umem.away(1)), (vec![0, 7, 6, 5, 4], (false, Some(0))));
}
