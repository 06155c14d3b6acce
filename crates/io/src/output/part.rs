//! Part files: what an output is written to until it is whole, beside the name that it is going to have.
//!
//! A part file is locked (flock) for as long as its process has it open. One that nobody holds was left by a run that died; the next run
//! that writes to that folder removes it. It does so only where all locks are seen: on file systems of this machine, and of files whose names
//! say that this kernel made them, since it was started. What another machine writes to a folder that this one lends it stays.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Its last part is the kernel's number since it was started; without one nothing is removed.
static PREFIX: LazyLock<String> = LazyLock::new(|| {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!(".packetloom-{}", boot.trim_ascii().split('-').next().unwrap_or_default())
});
const SUFFIX: &str = ".part";

/// Makes a file of a name of its own in the folder of `path`.
pub(super) fn create(path: &Path) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if path.file_name().is_none() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sweep(path);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let part = path.with_file_name(format!("{}-{}-{number}{SUFFIX}", *PREFIX, std::process::id()));
        // Never a file that is there, nor what a link of that name leads to.
        match OpenOptions::new().write(true).create_new(true).open(&part) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(file) => {
                // Where the file system has no locks nobody else gets one either, and it stays. Another run may have taken it for left behind in
                // the moment before the lock: then it has no name any more.
                let _ = flock(&file, FlockOperation::LockExclusive);
                if file.metadata()?.nlink() > 0 {
                    return Ok((part, file));
                }
            }
        }
    }
}

/// Part files that were removed since they were asked for the last time.
static REMOVED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Folders that were looked through, by device and inode: each once in a process.
static SWEPT: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

/// Part files of runs that died, removed by this process since it was asked for the last time.
pub fn removed() -> Vec<PathBuf> {
    std::mem::take(&mut *REMOVED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes what runs that died have left in the folder of `path`. What cannot be looked into or removed stays.
fn sweep(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(metadata) = fs::metadata(folder) else { return };
    let mut swept = SWEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if !swept.get_or_insert_default().insert((metadata.dev(), metadata.ino())) {
        return;
    }
    drop(swept);
    if !is_local(folder) {
        return;
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_ours) && remove_left(&entry.path()) {
            REMOVED.lock().unwrap_or_else(PoisonError::into_inner).push(entry.path());
        }
    }
}

/// Whether a folder is on a file system that this machine has for itself, as far as it knows.
fn is_local(folder: &Path) -> bool {
    /// ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS, F2FS and bcachefs, by the numbers of statfs(2).
    const LOCAL: [u32; 8] = [
        0x0000_ef53,
        0x5846_5342,
        0x9123_683e,
        0x0102_1994,
        0x794c_7630,
        0x2fc1_2fc1,
        0xf2f5_2010,
        0xca45_1a4e,
    ];
    rustix::fs::statfs(folder).is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
}

/// Whether a part file of this kernel has this name.
fn is_ours(name: &str) -> bool {
    let numbers = name.strip_prefix(&**PREFIX).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(SUFFIX));
    let Some((process, number)) = numbers.and_then(|numbers| numbers.split_once('-')) else { return false };
    !PREFIX.ends_with('-') && process.parse::<u32>().is_ok() && number.parse::<u32>().is_ok()
}

/// Removes a part file that no process has open.
fn remove_left(path: &Path) -> bool {
    // Not what a link leads to, and without waiting for the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let options = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path);
    let Ok(file) = options else { return false };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    // With the lock, what has the name is what was locked, or somebody else's.
    let is_same = match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(locked), Ok(named)) => {
            locked.is_file() && (locked.dev(), locked.ino()) == (named.dev(), named.ino())
        }
        _ => false,
    };
    is_same && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_part_files() {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the kernel's number");
        let boot = &boot[..8];
        assert!(is_ours(&format!(".packetloom-{boot}-12-3.part")));
        for other in [
            format!(".packetloom-{boot}-12.part"),
            format!("packetloom-{boot}-12-3.part"),
            format!(".packetloom-{boot}-x-3.part"),
            format!(".packetloom-{boot}-12-3"),
            ".packetloom-12-3.part".into(),
            ".packetloom-00000000-12-3.part".into(),
            "x".into(),
        ] {
            assert!(!is_ours(&other), "{other}");
        }
    }

    #[test]
    fn only_what_was_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let name = |number: u32| at(&format!("{}-1-{number}{SUFFIX}", *PREFIX));
        let (left, held, link, directory) = (name(0), name(1), name(2), name(3));
        let elsewhere = at(".packetloom-00000000-1-0.part");
        for path in [&left, &held, &elsewhere, &at("other.part")] {
            fs::write(path, "data").expect("written");
        }
        std::os::unix::fs::symlink(at("other.part"), &link).expect("linked");
        fs::create_dir(&directory).expect("made");
        let holder = File::open(&held).expect("opened");
        flock(&holder, FlockOperation::LockExclusive).expect("locked");
        let (own, _file) = create(&at("result")).expect("made");
        assert!(!left.exists() && own.exists());
        assert!(elsewhere.exists() && held.exists() && directory.exists() && link.is_symlink());
        assert!(at("other.part").exists());
        assert!(removed().contains(&left));
        // What this process writes stays, whoever looks.
        assert!(!remove_left(&own) && own.exists());
        // Once in a process.
        fs::write(&left, "data").expect("written");
        drop(holder);
        create(&at("result")).expect("made");
        assert!(left.exists() && held.exists());
        assert!(remove_left(&held) && !held.exists());
    }
}
