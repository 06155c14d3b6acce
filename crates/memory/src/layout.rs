//! What lies in memory that Rust and kernels of devices share, declared once: [`layout!`](crate::layout!).

use std::collections::HashSet;

/// A struct as kernels have it, or one of their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name, in Rust and in the kernels' text.
    pub name: &'static str,
    /// Whether kernels read and write 16 bytes of it at a time.
    pub is_wide: bool,
    /// Bytes of it in Rust.
    pub size: usize,
    /// Its fields; none of a number.
    pub fields: &'static [Field],
}

/// A field of such a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes before it in Rust.
    pub at: usize,
    /// What it is, or what its elements are.
    pub of: &'static Layout,
    /// Of an array how many elements it has; of an array of arrays the outer number first.
    pub counts: &'static [usize],
}

/// A number that kernels have, too, or a struct that [`layout!`](crate::layout!) declares.
pub trait LaidOut {
    /// How it is laid out.
    const LAYOUT: Layout;
}

macro_rules! numbers {
    ($($number:ident)*) => {
        $(impl LaidOut for $number {
            const LAYOUT: Layout =
                Layout { name: stringify!($number), is_wide: false, size: size_of::<Self>(), fields: &[] };
        })*
    };
}
numbers!(u8 u16 u32 u64 i32);

impl Layout {
    /// The declarations of these in the kernels' text, each once, and before each those of the structs in it.
    pub fn declare(layouts: impl IntoIterator<Item = Self>) -> String {
        let mut text = String::new();
        let mut declared = HashSet::new();
        layouts.into_iter().for_each(|layout| layout.add_to(&mut text, &mut declared));
        text
    }

    fn add_to(&self, text: &mut String, declared: &mut HashSet<String>) {
        self.fields.iter().for_each(|field| field.of.add_to(text, declared));
        let own = self.text();
        // Two of the same name that differ are both there, so that compilers refuse them.
        if !self.fields.is_empty() && declared.insert(own.clone()) {
            *text += &own;
        }
    }

    fn text(&self) -> String {
        let field = |Field { name, of, counts, .. }: &Field| {
            let counts: String = counts.iter().map(|count| format!("[{count}]")).collect();
            format!("{} {name}{counts}; ", of.name)
        };
        let fields: String = self.fields.iter().map(field).collect();
        let wide = if self.is_wide { "ALIGNED(16) " } else { "" };
        format!("typedef struct {wide}{{ {fields}}} {};\n", self.name)
    }
}

/// Declares a struct that lies in memory shared with kernels: `#[repr(C)]` in Rust, and a struct of the same name in the kernels' text
/// ([`LaidOut::LAYOUT`], [`Layout::declare`]). `align(16)` in front has kernels read and write 16 bytes at a time. Fields are numbers, other
/// such structs, or arrays of these.
///
/// ```
/// const WORDS: usize = 4;
/// packetloom_memory::layout! {
///     /// What is said of a packet.
///     #[derive(Clone, Copy, Debug)]
///     align(16) pub struct Said {
///         /// Its key.
///         pub key: [u32; WORDS],
///         pub time: u64,
///         pub bytes: u32,
///     }
/// }
/// use packetloom_memory::{LaidOut, Layout};
/// let text = "typedef struct ALIGNED(16) { u32 key[4]; u64 time; u32 bytes; } Said;\n";
/// assert_eq!(Layout::declare([Said::LAYOUT]), text);
/// assert_eq!((Said::LAYOUT.size, Said::LAYOUT.fields[2].at), (32, 24));
/// ```
///
/// A struct that is there already can have another form in kernels: fields that follow each other as one number, or as an array, which has the
/// name of the first one. State for flows is words of 64 bits in kernels, so all fields of its form there are `u64`.
///
/// ```
/// #[repr(C)]
/// struct Window {
///     since: u64,
///     attempts: u32,
///     is_scanner: u32,
/// }
/// packetloom_memory::layout!(impl Window { since: u64, attempts: u64 });
/// # use packetloom_memory::{LaidOut, Layout};
/// # assert_eq!(Layout::declare([Window::LAYOUT]), "typedef struct { u64 since; u64 attempts; } Window;\n");
/// ```
#[macro_export]
macro_rules! layout {
    (impl $name:ident { $($field:ident: $type:tt),* $(,)? }) => {
        $crate::layout!(@impl $name false [$($field: $type),*]);
    };
    ($(#[$meta:meta])* $vis:vis struct $($rest:tt)*) => {
        $crate::layout!(@struct [$(#[$meta])* #[repr(C)] $vis] false $($rest)*);
    };
    ($(#[$meta:meta])* align(16) $vis:vis struct $($rest:tt)*) => {
        $crate::layout!(@struct [$(#[$meta])* #[repr(C, align(16))] $vis] true $($rest)*);
    };
    (@struct [$($head:tt)*] $is_wide:literal $name:ident {
        $($(#[$doc:meta])* $vis:vis $field:ident: $type:tt),* $(,)?
    }) => {
        $($head)* struct $name {
            $($(#[$doc])* $vis $field: $type),*
        }
        $crate::layout!(@impl $name $is_wide [$($field: $type),*]);
    };
    (@impl $name:ident $is_wide:literal [$($field:ident: $type:tt),*]) => {
        impl $crate::LaidOut for $name {
            const LAYOUT: $crate::Layout = $crate::Layout {
                name: stringify!($name),
                is_wide: $is_wide,
                size: size_of::<Self>(),
                fields: &[$($crate::Field {
                    name: stringify!($field),
                    at: std::mem::offset_of!(Self, $field),
                    of: $crate::layout!(@of $type),
                    counts: $crate::layout!(@counts [] $type),
                }),*],
            };
        }
    };
    (@of [$element:tt; $count:expr]) => { $crate::layout!(@of $element) };
    (@of $type:ident) => { &<$type as $crate::LaidOut>::LAYOUT };
    (@counts [$($counts:expr),*] [$element:tt; $count:expr]) => {
        $crate::layout!(@counts [$($counts,)* $count] $element)
    };
    (@counts [$($counts:expr),*] $type:ident) => { &[$($counts),*] };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::layout! {
        #[allow(dead_code)]
        struct Small {
            byte: u8,
            pairs: [[u16; 2]; 3],
        }
    }
    crate::layout! {
        #[allow(dead_code)]
        struct Large {
            first: Small,
            others: [Small; 2],
        }
    }

    #[test]
    fn structs_in_others_are_declared_before_them_and_once() {
        let small = "typedef struct { u8 byte; u16 pairs[3][2]; } Small;\n";
        let large = "typedef struct { Small first; Small others[2]; } Large;\n";
        assert_eq!(Layout::declare([Large::LAYOUT, Small::LAYOUT, u64::LAYOUT]), [small, large].concat());
        let fields = Large::LAYOUT.fields.iter().map(|field| (field.name, field.at, field.of.size));
        assert_eq!(fields.collect::<Vec<_>>(), [("first", 0, 14), ("others", 14, 14)]);
    }
}
