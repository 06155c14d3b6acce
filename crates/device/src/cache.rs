//! Compiled kernels, kept in files.

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Where compiled kernels are kept; a file each, named by the hash of all that it was made of.
///
/// A file that cannot be read, or is not what was written, counts as absent: kernels are compiled anew.
#[derive(Clone, Debug)]
pub struct Cache(Option<PathBuf>);

impl Cache {
    /// Nothing is kept.
    pub fn none() -> Self {
        Self(None)
    }

    /// Kernels are kept in this folder, which is made when it is needed.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(Some(folder.into()))
    }

    /// The user's folder for such things: `packetloom/kernels` below `XDG_CACHE_HOME` or `~/.cache`.
    pub fn user() -> Self {
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
        Self(base.map(|base| base.join("packetloom/kernels")))
    }

    /// The name of what is made of `parts`.
    pub(crate) fn key(parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.0.as_ref()?.join(key)).ok()?;
        // The hash of what follows stands before it.
        let hash: Vec<u8> = bytes.drain(..bytes.len().min(32)).collect();
        (hash[..] == Sha256::digest(&bytes)[..]).then_some(bytes)
    }

    /// Keeps a binary; where that fails, it is compiled again next time.
    pub(crate) fn put(&self, key: &str, binary: &[u8]) {
        if let Some(folder) = &self.0 {
            let _ = write(folder, key, binary);
        }
    }
}

fn write(folder: &Path, key: &str, binary: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&Sha256::digest(binary))?;
    file.write_all(binary)?;
    file.persist(folder.join(key))?;
    Ok(())
}
