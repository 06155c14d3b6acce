//! Part files: what an output is written to until it is whole, beside the name that it is going to have.
//!
//! A part file is locked (flock) for as long as its process has it open. One that nobody holds and whose process is gone was left by a run
//! that died; the next run that writes to that folder removes it. Not so on file systems that other machines may write to: neither
//! locks nor processes of those are sure to be seen here.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, test_kill_process};

const PREFIX: &str = ".packetloom-";
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
        let part = path.with_file_name(format!("{PREFIX}{}-{number}{SUFFIX}", std::process::id()));
        // Never a file that is there, nor what a link of that name leads to.
        match OpenOptions::new().write(true).create_new(true).open(&part) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(file) => {
                // Where the file system has no locks, the process that is alive has to do. Another run may have taken it for left behind in the
                // moment before the lock: then it has no name any more.
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
    if is_shared(folder) {
        return;
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let process = entry.file_name().to_str().and_then(process_of);
        if process.is_some_and(|process| !is_alive(process)) && remove_left(&entry.path()) {
            REMOVED.lock().unwrap_or_else(PoisonError::into_inner).push(entry.path());
        }
    }
}

/// Whether other machines may write to a folder, or that is not known.
fn is_shared(folder: &Path) -> bool {
    /// NFS, SMB and its predecessors, 9P, FUSE, AFS, Ceph and GFS2, by the numbers of statfs(2).
    const SHARED: [u32; 8] =
        [0x6969, 0xfe53_4d42, 0xff53_4d42, 0x0102_1997, 0x6573_5546, 0x5346_414f, 0x00c3_6400, 0x0116_1970];
    rustix::fs::statfs(folder).map_or(true, |found| SHARED.contains(&(found.f_type as u32)))
}

/// The process whose part file has this name.
fn process_of(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let _: u32 = number.parse().ok()?;
    process.parse().ok()
}

/// Whether there is such a process here, whoever it belongs to.
fn is_alive(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}

/// Removes a part file that no process has open; one of another machine or container may.
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

    /// A number that no process has.
    const NOBODY: u32 = i32::MAX as u32;

    #[test]
    fn names_are_those_of_part_files() {
        assert_eq!(process_of(".packetloom-12-3.part"), Some(12));
        for other in
            [".packetloom-12.part", "packetloom-12-3.part", ".packetloom-x-3.part", ".packetloom-12-3", "x"]
        {
            assert_eq!(process_of(other), None, "{other}");
        }
        assert!(is_alive(std::process::id()) && is_alive(1) && !is_alive(NOBODY));
    }

    #[test]
    fn only_what_was_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let name = |process: u32, number: u32| at(&format!("{PREFIX}{process}-{number}{SUFFIX}"));
        let (left, alive, held, link, directory) =
            (name(NOBODY, 0), name(1, 0), name(NOBODY, 1), name(NOBODY, 2), name(NOBODY, 3));
        for path in [&left, &alive, &held, &at("other.part")] {
            fs::write(path, "data").expect("written");
        }
        std::os::unix::fs::symlink(at("other.part"), &link).expect("linked");
        fs::create_dir(&directory).expect("made");
        let holder = File::open(&held).expect("opened");
        flock(&holder, FlockOperation::LockExclusive).expect("locked");
        let (own, _file) = create(&at("result")).expect("made");
        assert!(!left.exists() && own.exists());
        assert!(alive.exists() && held.exists() && directory.exists() && link.is_symlink());
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
