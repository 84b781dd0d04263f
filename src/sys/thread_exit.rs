//! A call at the end of a thread's life, after its Rust thread-locals have been destroyed.
//!
//! A `thread_local!` with a destructor would be destroyed in an order that nobody controls, and refuse access
//! afterwards, while the destructors of other thread-locals may still create and end coroutines. A POSIX key's
//! destructor runs after all of those, and when a later key's destructor sets the value again, it runs again
//! (`PTHREAD_DESTRUCTOR_ITERATIONS` rounds).
//!
//! Reference: pthread_key_create(3).
#![allow(unsafe_code)] // # Safety: the key is made once and never deleted.

use std::ffi::c_void;
use std::sync::OnceLock;

/// Arranges that `hook` is called with `value` (not null) when this thread ends. A second call replaces the value.
///
/// If the process is out of keys, the hook isn't called: what the thread pooled is then lost with it.
pub(crate) fn call_at_exit(hook: unsafe extern "C" fn(*mut c_void), value: *mut c_void) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a valid place for the result, and `hook` is a function that lives for ever.
        let result = unsafe { libc::pthread_key_create(&mut key, Some(hook)) };
        (result == 0).then_some(key)
    });
    if let Some(key) = key {
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, value) };
    }
}
