//! What signals do to this process is its own affair, whatever drivers do.
//!
//! Drivers that have LLVM in this process, as PoCL does, put its handlers for crashes and interrupts in place of those that are there, once:
//! the process would be deaf to SIGUSR1, or end at SIGTERM without its outputs.

use std::mem::MaybeUninit;

/// Those that others send to a process, or that have a run stop. Crashes (SIGFPE, SIGSEGV and their like) are left to drivers, which may know
/// what to do: PoCL has kernels that divide by zero go on.
const SIGNALS: [i32; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGWINCH,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// Runs `call` of a driver, and leaves the handlers of signals as they were.
pub(crate) fn kept<T>(call: impl FnOnce() -> T) -> T {
    let before = SIGNALS.map(handler);
    let result = call();
    for (signal, before) in SIGNALS.into_iter().zip(before) {
        if let (Some(before), Some(now)) = (before, handler(signal))
            && before.sa_sigaction != now.sa_sigaction
        {
            // SAFETY: the action is one that was there before.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
    }
    result
}

/// What a signal does now, if the system says so.
fn handler(signal: i32) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: without a new action nothing is changed; the old one has room.
    let found = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it was written, as the call says.
    (found == 0).then(|| unsafe { action.assume_init() })
}
