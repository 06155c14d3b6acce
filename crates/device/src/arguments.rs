//! What kernels are given, declared once.
//!
//! [`arguments!`](crate::arguments!) makes a struct of a kernel's arguments. From it come the parameters in the kernel's text, what the driver is
//! told, and the checks before each launch: no list is kept equal to another by hand.

use std::marker::PhantomData;

use crate::{Error, Loaded, Memory, Parameter, Shared};

/// Memory that a kernel is given.
#[derive(Clone, Copy, Debug)]
pub enum Buffer<'a> {
    /// Of the device.
    Memory(&'a Memory),
    /// Of the host, where the device [shares](crate::Description::shares) it.
    Shared(&'a Shared),
}

impl Buffer<'_> {
    /// Bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.len(),
            Self::Shared(shared) => shared.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a Memory> for Buffer<'a> {
    fn from(memory: &'a Memory) -> Self {
        Self::Memory(memory)
    }
}

impl<'a> From<&'a Shared> for Buffer<'a> {
    fn from(shared: &'a Shared) -> Self {
        Self::Shared(shared)
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Memory.
    Buffer(Buffer<'a>),
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
}

impl<'a> From<&'a Memory> for Argument<'a> {
    fn from(memory: &'a Memory) -> Self {
        Self::Buffer(memory.into())
    }
}

impl<'a> From<&'a Shared> for Argument<'a> {
    fn from(shared: &'a Shared) -> Self {
        Self::Buffer(shared.into())
    }
}

impl From<u32> for Argument<'_> {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<u64> for Argument<'_> {
    fn from(number: u64) -> Self {
        Self::U64(number)
    }
}

/// All that a kernel is given: a struct that [`arguments!`](crate::arguments!) declares.
pub trait Arguments {
    /// What the driver is told of each, in the order of the kernel's text.
    const PARAMETERS: &'static [Parameter];
    /// The name that the kernel's text has for them.
    const NAME: &'static str;
    /// They, in the kernel's text.
    const TEXT: &'static str;

    /// Has the kernel's text know its parameters by their name: an entry of [`Program::defines`](crate::Program::defines).
    fn define() -> (String, String) {
        (Self::NAME.into(), Self::TEXT.into())
    }

    /// Whether memory is as long as was declared for these numbers, and what else was declared of them.
    ///
    /// # Errors
    /// [`Error::Misuse`] where it is not.
    fn check(&self) -> Result<(), Error>;

    /// Each of them, as [`Self::PARAMETERS`] says.
    fn with<T>(&self, use_them: impl FnOnce(&[Argument<'_>]) -> T) -> T;
}

/// A kernel with the arguments that it takes.
#[derive(Clone, Debug)]
pub struct Kernel<A> {
    pub(crate) loaded: Loaded,
    arguments: PhantomData<A>,
}

impl<A: Arguments> Kernel<A> {
    /// Vouches for a kernel that was loaded.
    ///
    /// # Safety
    /// Whichever arguments safe code can make that pass [`Arguments::check`], and however many groups are launched: the kernel accesses no memory but
    /// what it is given, none beyond its end, writes only what it may write, and comes to its end, or leaves when the host tells it to. Live memory
    /// may change at any time. Where this depends on what other memory holds (tables that lead from one to the other), or on that nobody
    /// writes it meanwhile (another queue could), arguments with memory of others must not be had: the struct's fields are
    /// private to those who lay that memory out.
    ///
    /// # Errors
    /// [`Error::Misuse`] where the program declares the kernel with other parameters.
    pub unsafe fn new(loaded: Loaded) -> Result<Self, Error> {
        if loaded.entry.parameters != A::PARAMETERS {
            let (name, arguments) = (loaded.entry.name, A::NAME);
            return Err(Error::Misuse(format!("the entry {name} does not take {arguments}")));
        }
        Ok(Self { loaded, arguments: PhantomData })
    }

    /// Items in a group.
    pub fn group(&self) -> u32 {
        self.loaded.group
    }

    /// Groups that a compute unit holds at a time, where the driver tells.
    ///
    /// # Errors
    /// What the driver says.
    pub fn groups_per_unit(&self) -> Result<Option<u32>, Error> {
        self.loaded.groups_per_unit()
    }
}

/// Whether memory has so many elements of a size; called by [`arguments!`](crate::arguments!).
#[doc(hidden)]
pub fn has_elements(
    kernel: &str,
    name: &str,
    buffer: Buffer<'_>,
    elements: u64,
    bytes: usize,
) -> Result<(), Error> {
    if elements.checked_mul(bytes as u64).is_some_and(|wanted| wanted <= buffer.len() as u64) {
        return Ok(());
    }
    let has = buffer.len();
    let why = format!(
        "{kernel}: {elements} elements of {bytes} bytes do not fit into {name}, which has {has} bytes"
    );
    Err(Error::Misuse(why))
}

/// Declares what a kernel takes: a struct, and by the name behind `as` the same parameters in the kernel's text.
///
/// | field | what the kernel gets |
/// | --- | --- |
/// | `a: read T [count]` | memory of so many `T` at least, which it only reads, and which stays as it is while it runs |
/// | `a: fixed T [count]` | the same, and no other argument leads there (`RESTRICT`) |
/// | `a: live T [count]` | memory that it only reads, and that others may write meanwhile |
/// | `a: write T [count]` | memory that it may write |
/// | `a: u32`, `a: u64` | a number |
/// | `a: host` | nothing: a `u64` that is known here only, for counts |
///
/// A count is an expression over the numbers, each as a `u64`, or `..` where only those who make the arguments know it. `T` is a type of Rust that
/// has the same name in the kernel's text: `u8`, `u16`, `u32`, `u64`, [`u32x4`](crate::u32x4), or one that
/// [`layout!`](crate::layout!) declares; with `..` any type of the text. Behind `where` stand further conditions.
///
/// ```
/// packetloom_device::arguments! {
///     /// What `add` takes.
///     pub struct Add as ADD_PARAMETERS {
///         /// Numbers, and room for their sums.
///         from: fixed u32 [count],
///         to: write u64 [count],
///         count: u32,
///     } where count < 1 << 31
/// }
/// use packetloom_device::Arguments;
/// assert_eq!(Add::TEXT, "GLOBAL const u32 *RESTRICT from, GLOBAL u64 *to, u32 count");
/// ```
#[macro_export]
macro_rules! arguments {
    ($(#[$meta:meta])* $vis:vis struct $name:ident as $text:ident { $($body:tt)* } $(where $($condition:expr),+)?) => {
        $crate::arguments! {
            @field [$(#[$meta])* $vis struct $name $text [$($($condition),+)?]] [] [] [] [] [] [] $($body)*
        }
    };
    // Memory, of which it is known here how much there must be, and of which it is not.
    (@field $head:tt $fields:tt $passed:tt $parameters:tt $texts:tt $numbers:tt [$($checks:tt)*]
     $(#[$doc:meta])* $field:ident: $kind:ident $element:ident [..], $($rest:tt)*) => {
        $crate::arguments! {
            @memory $head $fields $passed $parameters $texts $numbers [$($checks)*]
            [$(#[$doc])*] $field $kind $element $($rest)*
        }
    };
    (@field $head:tt $fields:tt $passed:tt $parameters:tt $texts:tt $numbers:tt [$($checks:tt)*]
     $(#[$doc:meta])* $field:ident: $kind:ident $element:ident [$count:expr], $($rest:tt)*) => {
        $crate::arguments! {
            @memory $head $fields $passed $parameters $texts $numbers [$($checks)* ($field $element $count)]
            [$(#[$doc])*] $field $kind $element $($rest)*
        }
    };
    (@memory $head:tt $fields:tt $passed:tt [$($parameters:tt)*] [$($texts:tt)*] $numbers:tt $checks:tt
     $docs:tt $field:ident read $element:ident $($rest:tt)*) => {
        $crate::arguments! {
            @buffer $head $fields $passed [$($parameters)* Constant]
            [$($texts)* ", GLOBAL const " stringify!($element) " *" stringify!($field)] $numbers $checks
            $docs $field $($rest)*
        }
    };
    (@memory $head:tt $fields:tt $passed:tt [$($parameters:tt)*] [$($texts:tt)*] $numbers:tt $checks:tt
     $docs:tt $field:ident live $element:ident $($rest:tt)*) => {
        $crate::arguments! {
            @buffer $head $fields $passed [$($parameters)* Live]
            [$($texts)* ", GLOBAL const " stringify!($element) " *" stringify!($field)] $numbers $checks
            $docs $field $($rest)*
        }
    };
    (@memory $head:tt $fields:tt $passed:tt [$($parameters:tt)*] [$($texts:tt)*] $numbers:tt $checks:tt
     $docs:tt $field:ident fixed $element:ident $($rest:tt)*) => {
        $crate::arguments! {
            @buffer $head $fields $passed [$($parameters)* Constant]
            [$($texts)* ", GLOBAL const " stringify!($element) " *RESTRICT " stringify!($field)] $numbers $checks
            $docs $field $($rest)*
        }
    };
    (@memory $head:tt $fields:tt $passed:tt [$($parameters:tt)*] [$($texts:tt)*] $numbers:tt $checks:tt
     $docs:tt $field:ident write $element:ident $($rest:tt)*) => {
        $crate::arguments! {
            @buffer $head $fields $passed [$($parameters)* Memory]
            [$($texts)* ", GLOBAL " stringify!($element) " *" stringify!($field)] $numbers $checks
            $docs $field $($rest)*
        }
    };
    (@buffer $head:tt [$($fields:tt)*] [$($passed:tt)*] $parameters:tt $texts:tt $numbers:tt $checks:tt
     [$($docs:tt)*] $field:ident $($rest:tt)*) => {
        $crate::arguments! {
            @field $head [$($fields)* ($($docs)* $field: $crate::Buffer<'a>)] [$($passed)* (Buffer $field)]
            $parameters $texts $numbers $checks $($rest)*
        }
    };
    // Numbers.
    (@field $head:tt [$($fields:tt)*] $passed:tt $parameters:tt $texts:tt [$($numbers:tt)*] $checks:tt
     $(#[$doc:meta])* $field:ident: host, $($rest:tt)*) => {
        $crate::arguments! {
            @field $head [$($fields)* ($(#[$doc])* $field: u64)] $passed $parameters $texts
            [$($numbers)* $field] $checks $($rest)*
        }
    };
    (@field $head:tt [$($fields:tt)*] [$($passed:tt)*] [$($parameters:tt)*] [$($texts:tt)*] [$($numbers:tt)*] $checks:tt
     $(#[$doc:meta])* $field:ident: u32, $($rest:tt)*) => {
        $crate::arguments! {
            @field $head [$($fields)* ($(#[$doc])* $field: u32)] [$($passed)* (U32 $field)] [$($parameters)* U32]
            [$($texts)* ", u32 " stringify!($field)] [$($numbers)* $field] $checks $($rest)*
        }
    };
    (@field $head:tt [$($fields:tt)*] [$($passed:tt)*] [$($parameters:tt)*] [$($texts:tt)*] [$($numbers:tt)*] $checks:tt
     $(#[$doc:meta])* $field:ident: u64, $($rest:tt)*) => {
        $crate::arguments! {
            @field $head [$($fields)* ($(#[$doc])* $field: u64)] [$($passed)* (U64 $field)] [$($parameters)* U64]
            [$($texts)* ", u64 " stringify!($field)] [$($numbers)* $field] $checks $($rest)*
        }
    };
    // All of them.
    (@field [$(#[$meta:meta])* $vis:vis struct $name:ident $text:ident [$($condition:expr),*]]
     [$(($(#[$doc:meta])* $field:ident: $type:ty))*] [$(($variant:ident $passed:ident))*] [$($parameter:ident)*]
     [$($texts:expr)*] [$($number:ident)*] [$(($memory:ident $element:ident $count:expr))*]) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $name<'a> {
            $($(#[$doc])* $vis $field: $type,)*
        }

        impl $crate::Arguments for $name<'_> {
            const PARAMETERS: &'static [$crate::Parameter] = &[$($crate::Parameter::$parameter),*];
            const NAME: &'static str = stringify!($text);
            // Without the comma before the first one.
            const TEXT: &'static str = concat!($($texts),*).split_at(2).1;

            #[allow(unused_variables)]
            fn check(&self) -> Result<(), $crate::Error> {
                $(let $number = u64::from(self.$number);)*
                $($crate::has_elements(
                    stringify!($name), stringify!($memory), self.$memory, $count, size_of::<$element>(),
                )?;)*
                $(if !($condition) {
                    let why = concat!(stringify!($name), ": expected ", stringify!($condition));
                    return Err($crate::Error::Misuse(why.into()));
                })*
                Ok(())
            }

            fn with<T>(&self, use_them: impl FnOnce(&[$crate::Argument<'_>]) -> T) -> T {
                use_them(&[$($crate::Argument::$variant(self.$passed)),*])
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, Device, Entry, Id, Program, u32x4};

    crate::arguments! {
        /// All kinds.
        struct Scale as SCALE_PARAMETERS {
            from: read u32 [begin + count],
            /// A word.
            by: fixed u32 [..],
            to: write u64 [count],
            seen: live u32 [..],
            pieces: write u32x4 [pieces_there],
            begin: u32,
            add: u64,
            count: u32,
            pieces_there: host,
        } where count <= 1000, begin.is_multiple_of(4)
    }

    #[test]
    fn the_text_has_the_parameters_that_are_passed() {
        assert_eq!(
            Scale::TEXT,
            "GLOBAL const u32 *from, GLOBAL const u32 *RESTRICT by, GLOBAL u64 *to, GLOBAL const u32 *seen, GLOBAL u32x4 *pieces, \
             u32 begin, u64 add, u32 count"
        );
        assert_eq!(Scale::define().0, "SCALE_PARAMETERS");
        let device = Device::open(Id::Host, Cache::none()).expect("a C compiler with sanitisers");
        let source = "KERNEL void scale(SCALE_PARAMETERS) {
            u32 i = group_index() * GROUP + local_index();
            if (i < count) to[i] = (u64)from[begin + i] * by[0] + add;
            if (i == 0) pieces[0].z = begin;
        }";
        let program = Program {
            name: "arguments_test",
            source: source.into(),
            defines: vec![Scale::define()],
            group: 4,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries: vec![Entry::of::<Scale<'_>>("scale"), Entry { name: "scale", parameters: &[] }],
        };
        // Without the second entry, which the text does not have.
        let program = Program { entries: program.entries[..1].to_vec(), ..program };
        let loaded = device.build(&program).expect("compiles").remove(0);
        // SAFETY: the text above.
        let kernel: Kernel<Scale<'static>> = unsafe { Kernel::new(loaded.clone()) }.expect("its arguments");
        let words: Vec<u32> = (0..20).collect();
        let from = device.memory_of(bytemuck::cast_slice(&words)).expect("memory");
        let by = device.memory_of(&3u32.to_ne_bytes()).expect("memory");
        let to = device.memory(16 * 8).expect("memory");
        let shared = device.share(16).expect("memory");
        let whole = Scale {
            from: (&from).into(),
            by: (&by).into(),
            to: (&to).into(),
            seen: (&by).into(),
            pieces: (&shared).into(),
            begin: 4,
            add: 1 << 40,
            count: 16,
            pieces_there: 1,
        };
        let mut queue = device.queue().expect("a queue");
        queue.launch(&kernel, 4, &whole).expect("runs");
        let mut found = [0u64; 16];
        queue.read(&to, 0, bytemuck::cast_slice_mut(&mut found)).expect("reads");
        assert_eq!(found[..3], [(1 << 40) + 12, (1 << 40) + 15, (1 << 40) + 18]);
        assert_eq!(shared.load(8), 4);
        // Memory that is too short, a count that overflows, a condition that does not hold.
        for (wrong, what) in [
            (Scale { count: 17, ..whole }, "21 elements"),
            (Scale { begin: 8, ..whole }, "24 elements of 4 bytes do not fit into from, which has 80 bytes"),
            (Scale { pieces_there: u64::MAX / 2, ..whole }, "pieces"),
            (Scale { begin: 2, ..whole }, "begin.is_multiple_of(4)"),
        ] {
            match queue.launch(&kernel, 4, &wrong) {
                Err(Error::Misuse(why)) => assert!(why.contains(what), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        crate::arguments! {
            struct Other as OTHER_PARAMETERS {
                only: write u32 [1],
            }
        }
        // SAFETY: it is refused.
        let error = unsafe { Kernel::<Other<'_>>::new(loaded) }.expect_err("other parameters");
        assert!(matches!(error, Error::Misuse(_)));
        let only = Other { only: (&shared).into() };
        only.check().expect("long enough");
        only.with(|arguments| assert_eq!(arguments.len(), 1));
    }
}
