//! libibverbs, opened by its name when a device is first asked for: so a program that can use RDMA
//! starts where there is no such library, and says so. The types are those of `ibverbs-sys`; what
//! posts and polls goes through the table of functions that each device brings along.

use ibverbs_sys as sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The name of the library, with the version of its interface.
const NAME: &CStr = c"libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: $type:ty,)+) => {
        /// The functions that are called. Each is as its manual page says.
        pub(super) struct Verbs {
            $(pub(super) $name: $type,)+
        }

        impl Verbs {
            /// Looks all functions up.
            ///
            /// # Safety
            ///
            /// `library` is libibverbs, which stays open.
            unsafe fn of(library: *mut c_void) -> Result<Verbs, String> {
                Ok(Verbs {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0");
                        // SAFETY: the library is open, and the name ends with a zero.
                        let found = unsafe { libc::dlsym(library, symbol.as_ptr().cast::<c_char>()) };
                        if found.is_null() {
                            return Err(format!("{NAME:?} has no {}: it is too old", stringify!($name)));
                        }
                        // SAFETY: the function of this name has this signature, by verbs.h.
                        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
                    },)+
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut sys::ibv_device,
    ibv_free_device_list: unsafe extern "C" fn(*mut *mut sys::ibv_device),
    ibv_get_device_name: unsafe extern "C" fn(*mut sys::ibv_device) -> *const c_char,
    ibv_open_device: unsafe extern "C" fn(*mut sys::ibv_device) -> *mut sys::ibv_context,
    ibv_close_device: unsafe extern "C" fn(*mut sys::ibv_context) -> c_int,
    ibv_query_device: unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int,
    ibv_query_port: unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr) -> c_int,
    ibv_query_gid: unsafe extern "C" fn(*mut sys::ibv_context, u8, c_int, *mut sys::ibv_gid) -> c_int,
    ibv_alloc_pd: unsafe extern "C" fn(*mut sys::ibv_context) -> *mut sys::ibv_pd,
    ibv_dealloc_pd: unsafe extern "C" fn(*mut sys::ibv_pd) -> c_int,
    ibv_reg_mr: unsafe extern "C" fn(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr,
    ibv_dereg_mr: unsafe extern "C" fn(*mut sys::ibv_mr) -> c_int,
    ibv_create_cq: unsafe extern "C" fn(
        *mut sys::ibv_context,
        c_int,
        *mut c_void,
        *mut sys::ibv_comp_channel,
        c_int,
    ) -> *mut sys::ibv_cq,
    ibv_destroy_cq: unsafe extern "C" fn(*mut sys::ibv_cq) -> c_int,
    ibv_create_qp: unsafe extern "C" fn(*mut sys::ibv_pd, *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp,
    ibv_modify_qp: unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int,
    ibv_destroy_qp: unsafe extern "C" fn(*mut sys::ibv_qp) -> c_int,
    ibv_wc_status_str: unsafe extern "C" fn(sys::ibv_wc_status::Type) -> *const c_char,
}

/// Returns the library's functions. It is opened once and never closed.
///
/// Errors: a sentence that says what the library lacks, or why it can't be opened.
pub(super) fn verbs() -> Result<&'static Verbs, String> {
    static OPENED: OnceLock<Result<Verbs, String>> = OnceLock::new();
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Verbs, String> {
    // SAFETY: the name ends with a zero; libibverbs may be opened at any time, by any thread.
    let library = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: what dlerror returns is a string that lives until this thread's next such call.
        let why = unsafe {
            let error = libc::dlerror();
            if error.is_null() { "no reason given".into() } else { CStr::from_ptr(error).to_string_lossy() }
        };
        return Err(why.into_owned());
    }
    // SAFETY: it was opened above, and nobody closes it.
    unsafe { Verbs::of(library) }
}
