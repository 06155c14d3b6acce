//! Whether a device's compiler lays structs out as Rust does.

use packetloom_memory::{Field, Layout};

use crate::{Device, Entry, Error, Parameter, Program};

/// Four words, which kernels read at once.
#[allow(non_camel_case_types)]
pub type u32x4 = [u32; 4];

impl Device {
    /// Compares sizes of structs and of those in them, and where each field lies, with those that the device's compiler has.
    ///
    /// # Errors
    /// [`Error::Misuse`] for the first that differs, or what the device says.
    pub fn check_layouts(&self, layouts: &[Layout]) -> Result<(), Error> {
        let mut layouts = layouts.to_vec();
        let mut source = Layout::declare(layouts.iter().copied());
        // And those in them.
        let mut next = 0;
        while let Some(layout) = layouts.get(next) {
            layouts.extend(layout.fields.iter().map(|field| *field.of).filter(|of| !of.fields.is_empty()));
            next += 1;
        }
        source += "KERNEL void measure(GLOBAL u64 *out) {\n";
        let mut expected = Vec::new();
        for (number, &Layout { name, size, fields, .. }) in layouts.iter().enumerate() {
            // NVRTC has no offsetof.
            let it = format!("of_{number}");
            if !fields.is_empty() {
                source += &format!("  PRIVATE {name} {it};\n");
            }
            let mut say = |what: String, value: &str, is: usize| {
                source += &format!("  out[{}] = {value};\n", expected.len());
                expected.push((what, is as u64));
            };
            let size_of = format!("sizeof({name})");
            say(size_of.clone(), &size_of, size);
            for Field { name: field, at, of, .. } in fields {
                let bytes = "(PRIVATE const char *)";
                let value = format!("(u64)({bytes}&{it}.{field} - {bytes}&{it})");
                say(format!("offsetof({name}, {field})"), &value, *at);
                // Also of those that are no structs, as numbers have the same names in both.
                let size_of = format!("sizeof({})", of.name);
                say(size_of.clone(), &size_of, of.size);
            }
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
        let kernel = self.build(&program)?.remove(0);
        let out = self.memory(expected.len() * 8)?;
        let mut queue = self.queue()?;
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

#[cfg(test)]
mod tests {
    use packetloom_memory::LaidOut;

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
        assert_eq!(device.check_layouts(&all), Ok(()));
        assert_eq!((Large::LAYOUT.size, align_of::<Large>()), (48, 16));
        const RIGHT: &[Field] = Small::LAYOUT.fields;
        const WRONG: &[Field] = &[RIGHT[0], Field { at: 1, ..RIGHT[1] }, RIGHT[2], RIGHT[3]];
        let wrong = Layout { fields: WRONG, ..Small::LAYOUT };
        match device.check_layouts(&[wrong]) {
            Err(Error::Misuse(why)) => assert!(why.contains("pair) is 2 in kernels, and 1 here"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
