//! What lies in memory that Rust and kernels share, declared once.

use crate::{Device, Entry, Error, Parameter, Program};

/// Four words, which kernels read at once.
#[allow(non_camel_case_types)]
pub type u32x4 = [u32; 4];

/// A struct as kernels have it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name, in Rust and in the kernels' text.
    pub name: &'static str,
    /// Its declaration in the kernels' text; those of the structs in it stand before.
    pub text: &'static str,
    /// Bytes of it in Rust.
    pub size: usize,
    /// Its fields, and the bytes before each in Rust.
    pub fields: &'static [(&'static str, usize)],
}

/// A struct that [`layout!`](crate::layout!) declares.
pub trait LaidOut {
    /// How it is laid out.
    const LAYOUT: Layout;
}

impl Layout {
    /// Compares sizes, and where each field lies, with those that a device's compiler has.
    ///
    /// # Errors
    /// [`Error::Misuse`] for the first that differs, or what the device says.
    pub fn check(layouts: &[Self], device: &Device) -> Result<(), Error> {
        let mut source: String = layouts.iter().map(|layout| layout.text).collect();
        source += "KERNEL void measure(GLOBAL u64 *out) {\n";
        let mut expected = Vec::new();
        for &Self { name, size, fields, .. } in layouts {
            let mut say = |what: String, is: usize| {
                source += &format!("  out[{}] = {what};\n", expected.len());
                expected.push((what, is as u64));
            };
            say(format!("sizeof({name})"), size);
            fields.iter().for_each(|(field, at)| say(format!("__builtin_offsetof({name}, {field})"), *at));
        }
        source += "}\n";
        let program = Program {
            name: "layouts",
            source,
            defines: Vec::new(),
            group: 1,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries: vec![Entry { name: "measure", parameters: &[Parameter::Memory] }],
        };
        let kernel = device.build(&program)?.remove(0);
        let out = device.memory(expected.len() * 8)?;
        let mut queue = device.queue()?;
        // SAFETY: the kernel writes as many numbers as are expected.
        unsafe { queue.launch_unchecked(&kernel, 1, &[(&out).into()])? };
        let mut found = vec![0u64; expected.len()];
        queue.read(&out, 0, bytemuck::cast_slice_mut(&mut found))?;
        match expected.into_iter().zip(found).find(|((_, expected), found)| expected != found) {
            None => Ok(()),
            Some(((what, expected), found)) => {
                Err(Error::Misuse(format!("{what} is {found} in kernels, and {expected} here")))
            }
        }
    }
}

/// Declares a struct that lies in memory shared with kernels: `#[repr(C)]` in Rust, and a struct of the same name in the kernels' text
/// ([`LaidOut::LAYOUT`]). `align(16)` in front has kernels read and write 16 bytes at a time. Fields are numbers, arrays of them, or other
/// such structs.
///
/// ```
/// packetloom_device::layout! {
///     /// What is said of a packet.
///     #[derive(Clone, Copy, Debug)]
///     align(16) pub struct Said {
///         /// Its key.
///         pub key: [u32; 4],
///         pub time: u64,
///         pub bytes: u32,
///     }
/// }
/// use packetloom_device::LaidOut;
/// assert_eq!(Said::LAYOUT.text, "typedef struct ALIGNED(16) { u32 key[4]; u64 time; u32 bytes; } Said;\n");
/// assert_eq!((Said::LAYOUT.size, Said::LAYOUT.fields[2]), (32, ("bytes", 24)));
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* $vis:vis struct $($rest:tt)*) => {
        $crate::layout!(@struct [$(#[$meta])* #[repr(C)] $vis] [""] $($rest)*);
    };
    ($(#[$meta:meta])* align(16) $vis:vis struct $($rest:tt)*) => {
        $crate::layout!(@struct [$(#[$meta])* #[repr(C, align(16))] $vis] ["ALIGNED(16) "] $($rest)*);
    };
    (@struct [$($head:tt)*] [$aligned:literal] $name:ident {
        $($(#[$doc:meta])* $vis:vis $field:ident: $type:tt),* $(,)?
    }) => {
        $($head)* struct $name {
            $($(#[$doc])* $vis $field: $type),*
        }

        impl $crate::LaidOut for $name {
            const LAYOUT: $crate::Layout = $crate::Layout {
                name: stringify!($name),
                text: concat!(
                    "typedef struct ", $aligned, "{ ", $($crate::layout!(@text $field $type),)* "} ",
                    stringify!($name), ";\n",
                ),
                size: size_of::<Self>(),
                fields: &[$((stringify!($field), std::mem::offset_of!(Self, $field))),*],
            };
        }
    };
    (@text $field:ident [$element:ident; $count:literal]) => {
        concat!(stringify!($element), " ", stringify!($field), "[", stringify!($count), "]; ")
    };
    (@text $field:ident $type:ident) => { concat!(stringify!($type), " ", stringify!($field), "; ") };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, Id};

    crate::layout! {
        struct Small {
            byte: u8,
            pair: u16,
            bytes: [u8; 5],
            wide: u64,
        }
    }
    crate::layout! {
        /// With another one inside.
        align(16) struct Large {
            word: u32,
            small: Small,
            words: [u32; 3],
        }
    }

    #[test]
    fn compilers_agree() {
        let device = Device::open(Id::Host, Cache::none()).expect("a C compiler with sanitisers");
        let all = [Small::LAYOUT, Large::LAYOUT];
        assert_eq!(Layout::check(&all, &device), Ok(()));
        assert_eq!((Large::LAYOUT.size, align_of::<Large>()), (48, 16));
        let wrong = Layout { fields: &[("byte", 0), ("pair", 1)], ..Small::LAYOUT };
        match Layout::check(&[wrong], &device) {
            Err(Error::Misuse(why)) => assert!(why.contains("pair) is 2 in kernels, and 1 here"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
