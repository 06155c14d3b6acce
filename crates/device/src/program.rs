//! Kernels as text.

use crate::Arguments;

/// The dialect's own part, before every kernel.
const PRELUDE: &str = include_str!("../kernels/prelude.h");

/// Kernels that are compiled together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it is called in messages.
    pub name: &'static str,
    /// Text in the dialect of `prelude.h`.
    pub source: String,
    /// Names that are defined before the text, with their values.
    pub defines: Vec<(String, String)>,
    /// Work items in a group; the text sees it as `GROUP`.
    pub group: u32,
    /// Groups that a compute unit should hold at once, if that can be had by using fewer registers; the text sees
    /// it as `GROUPS_PER_UNIT`.
    pub groups_per_unit: u32,
    /// Whether kernels of it may stay while others come and go: then as much memory is kept for groups as there can be. Otherwise what so
    /// many groups do not need may be used as a cache.
    pub stays: bool,
    /// Bytes of `LOCAL_MEMORY` that a group has; 0 for none.
    pub local: u32,
    /// The entry points, in the order in which [`crate::Device::build`] returns them.
    pub entries: Vec<Entry>,
}

/// An entry point of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the function.
    pub name: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl Entry {
    /// The entry of a kernel of this name with these arguments.
    pub const fn of<A: Arguments>(name: &'static str) -> Self {
        Self { name, parameters: A::PARAMETERS }
    }
}

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A pointer to memory, which the kernel may write.
    Memory,
    /// A pointer to memory that the kernel only reads, and that stays as it is while it runs.
    Constant,
    /// A pointer to memory that the kernel only reads, and that others may write while it runs.
    Live,
    /// A `u32`.
    U32,
    /// A `u64`.
    U64,
}

impl Program {
    /// The whole text that a compiler gets, for a device of which so many items run in step.
    pub(crate) fn text(&self, lanes: u32) -> String {
        let mut text = format!(
            "#define GROUP {}\n#define GROUPS_PER_UNIT {}\n#define LOCAL_BYTES {}\n#define HOST_LANES {}\n",
            self.group,
            self.groups_per_unit,
            self.local,
            self.group.min(lanes)
        );
        for (name, value) in &self.defines {
            text += &format!("#define {name} {value}\n");
        }
        text += "#line 1 \"prelude.h\"\n";
        text += PRELUDE;
        text += &format!("#line 1 \"{}.kernel.c\"\n", self.name);
        text += &self.source;
        text
    }
}
