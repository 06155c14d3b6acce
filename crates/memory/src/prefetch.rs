//! Bringing memory into the cache before it is needed.
#![allow(unsafe_code)]

/// Asks for the cache lines of `item`, if there is one.
#[inline]
pub fn prefetch<T>(item: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = item {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = std::ptr::from_ref(item).cast::<i8>();
        for line in (0..size_of::<T>()).step_by(64) {
            // SAFETY: a prefetch reads nothing into the program and faults on no address; this one lies within `item`.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Asks for the cache line in which the item at a place begins; nothing is asked of the place, which may be beyond the last one.
#[inline]
pub fn prefetch_at<T>(items: &[T], at: usize) {
    prefetch_address(items.as_ptr().wrapping_add(at));
}

/// Asks for the cache line of an address; nothing is asked of the address.
#[inline]
pub fn prefetch_address<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and faults on no address, whatever lies there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The same for what is not needed at once, or far from here: into the second cache. There is more room, and on some processors more can be
/// on its way there.
#[inline]
pub fn prefetch_l2_at<T>(items: &[T], at: usize) {
    prefetch_l2(items.as_ptr().wrapping_add(at));
}

/// Asks for the cache line of an address into the second cache; nothing is asked of the address.
#[inline]
pub fn prefetch_l2<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
