//! Which vector instructions the processor has: asked once, when an index is built. The one place of this crate with
//! unsafe code.
//!
//! An algorithm is written once, as a [`Kernel`] over any [`Vector`]; [`Isa::run`] calls a copy of it that the compiler made
//! for the instruction set.
#![allow(unsafe_code)]

mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

pub use vector::{LANES, Vector};

/// An instruction set that this processor has. There is no way to name one that it lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// 512-bit vectors: F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every processor of the target has: 128-bit vectors on x86-64.
    Portable,
}

/// Something to compute, compiled for each instruction set.
pub trait Kernel {
    /// What comes of it.
    type Output;

    /// Computes it. This method, and what it calls where the time goes, must be `#[inline(always)]`: code becomes part of
    /// the copy for an instruction set only by being inlined into it.
    fn run<V: Vector>(self) -> Self::Output;
}

impl Isa {
    /// The instruction sets that this processor has, best first; the last is always there.
    pub fn all_available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
            }
            let avx2 = has!("avx2" "bmi1" "bmi2" "lzcnt" "popcnt");
            if avx2 && has!("avx512f" "avx512bw" "avx512dq" "avx512vl") {
                all.push(Self(Level::Avx512));
            }
            if avx2 {
                all.push(Self(Level::Avx2));
            }
        }
        all.push(Self(Level::Portable));
        all
    }

    /// The best there is.
    pub fn detect() -> Self {
        Self::all_available()[0]
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        }
    }

    /// Runs the copy of the kernel that was made for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            // SAFETY: an `Isa` of this level is made in `all_available` alone, where the processor has the features.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2(kernel) },
            Level::Portable => kernel.run::<vector::Portable>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<x86::Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<x86::Avx2>()
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
