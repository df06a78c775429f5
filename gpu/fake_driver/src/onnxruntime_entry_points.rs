//! ONNX Runtime's table of functions, for programs that open this crate's library in place of
//! `libonnxruntime.so`: that of the real library, but for what has to do with the CUDA provider.
//! A run on bound tensors waits for its stream, as the provider would have put it there, computes
//! on the host, and writes the outputs to the device.
#![allow(non_snake_case, reason = "the names are ONNX Runtime's")]

use crate::onnxruntime::{BoundRun, BoundTensor, BoundTensors, state};
use libloading::Library;
use ort_sys::{
    ONNXTensorElementDataType, OrtAllocatorType, OrtApi, OrtApiBase, OrtCUDAProviderOptionsV2, OrtEnv,
    OrtErrorCode, OrtIoBinding, OrtMemType, OrtRunOptions, OrtSession, OrtSessionOptions, OrtStatusPtr,
    OrtValue,
};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// The variable that names the real library.
const REAL: &str = "SYMPHONY_FAKE_ONNXRUNTIME";

/// The version of the table, which has all functions that are called.
const TABLE: u32 = 20;

/// The real library, with the tables of its functions and ours.
struct Tables {
    base: OrtApiBase,
    real: OrtApi,
    ours: OrtApi,
    _library: Library,
}

static TABLES: OnceLock<Tables> = OnceLock::new();

/// Returns the functions of the real library.
fn real() -> &'static OrtApi {
    &TABLES.get().expect("a function is called of a table, which is given out once there are both").real
}

/// Opens the real library.
fn open() -> Result<Tables, String> {
    let path = std::env::var_os(REAL).ok_or(format!("{REAL} names no library of ONNX Runtime"))?;
    // SAFETY: ONNX Runtime's library may be opened at any time; the function has this type.
    let (library, base) = unsafe {
        let library = Library::new(path).map_err(|error| error.to_string())?;
        let base = library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase");
        let base = base.map_err(|error| error.to_string())?();
        (library, base)
    };
    // SAFETY: the table of tables is the library's, and is never freed.
    let (base, real) = unsafe { (*base, ((*base).GetApi)(TABLE)) };
    // SAFETY: null, or a table with the functions of this version and those before it.
    let real = unsafe { real.as_ref() }.ok_or("the library is older than ONNX Runtime 1.20")?.clone();
    let ours = OrtApi {
        CreateCUDAProviderOptions: create_options,
        UpdateCUDAProviderOptions: update_options,
        ReleaseCUDAProviderOptions: release_options,
        SessionOptionsAppendExecutionProvider_CUDA_V2: append_provider,
        ReleaseSessionOptions: release_session_options,
        CreateSessionFromArray: create_session,
        ReleaseSession: release_session,
        AddRunConfigEntry: add_run_entry,
        ReleaseRunOptions: release_run_options,
        BindInput: bind_input,
        BindOutput: bind_output,
        ReleaseIoBinding: release_binding,
        RunWithBinding: run_with_binding,
        ..real.clone()
    };
    let base = OrtApiBase { GetApi: get_api, GetVersionString: base.GetVersionString };
    Ok(Tables { base, real, ours, _library: library })
}

/// Returns the table of tables; null, and a line on standard error, without a real library.
#[unsafe(no_mangle)]
extern "C" fn OrtGetApiBase() -> *const OrtApiBase {
    if TABLES.get().is_none() {
        match open() {
            Ok(tables) => drop(TABLES.set(tables)),
            Err(wrong) => eprintln!("{wrong}"),
        }
    }
    TABLES.get().map_or(null(), |tables| &raw const tables.base)
}

unsafe extern "system" fn get_api(version: u32) -> *const OrtApi {
    TABLES.get().filter(|_| version <= TABLE).map_or(null(), |tables| &raw const tables.ours)
}

/// Returns a status of the library's for a result.
fn status(result: Result<(), String>) -> OrtStatusPtr {
    let Err(wrong) = result else { return OrtStatusPtr::default() };
    let text = CString::new(wrong).unwrap_or_default();
    // SAFETY: the text ends in 0, and is copied.
    unsafe { (real().CreateStatus)(OrtErrorCode::ORT_EP_FAIL, text.as_ptr()) }
}

/// Turns a status of the library's into a result.
fn result(status: OrtStatusPtr) -> Result<(), String> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null has a text, which is copied before it is released.
    unsafe {
        let text = CStr::from_ptr((real().GetErrorMessage)(status.0)).to_string_lossy().into_owned();
        (real().ReleaseStatus)(status.0);
        Err(text)
    }
}

/// # Safety
/// As of every function here: what `onnxruntime_c_api.h` asks of the arguments.
unsafe extern "system" fn create_options(out: *mut *mut OrtCUDAProviderOptionsV2) -> OrtStatusPtr {
    let options: *mut OrtCUDAProviderOptionsV2 = Box::into_raw(Box::new(0u64)).cast();
    state().options.insert(options.addr(), BTreeMap::new());
    // SAFETY: the caller's to be written.
    unsafe { out.write(options) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn update_options(
    options: *mut OrtCUDAProviderOptionsV2,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> OrtStatusPtr {
    // SAFETY: the caller's: so many texts, each of which ends in 0.
    let text = |of: *const *const c_char, at: usize| unsafe {
        CStr::from_ptr(*of.add(at)).to_string_lossy().into_owned()
    };
    let given = (0..count).map(|at| (text(keys, at), text(values, at)));
    let mut state = state();
    let known = state.options.get_mut(&options.addr()).ok_or("there are no such options".to_owned());
    status(known.map(|known| known.extend(given)))
}

unsafe extern "system" fn release_options(options: *mut OrtCUDAProviderOptionsV2) {
    if state().options.remove(&options.addr()).is_some() {
        // SAFETY: made by `create_options`, and released once.
        drop(unsafe { Box::from_raw(options.cast::<u64>()) });
    }
}

unsafe extern "system" fn append_provider(
    options: *mut OrtSessionOptions,
    provider: *const OrtCUDAProviderOptionsV2,
) -> OrtStatusPtr {
    status(state().append(options.addr(), provider.addr()))
}

unsafe extern "system" fn release_session_options(options: *mut OrtSessionOptions) {
    state().of_session_options.remove(&options.addr());
    // SAFETY: the caller's.
    unsafe { (real().ReleaseSessionOptions)(options) };
}

unsafe extern "system" fn create_session(
    env: *const OrtEnv,
    model: *const c_void,
    length: usize,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    // SAFETY: the caller's: a model of this length.
    let bytes = unsafe { std::slice::from_raw_parts(model.cast::<u8>(), length) };
    let checked = state().check_model(options.addr(), bytes);
    let made = checked.and_then(|()| {
        // SAFETY: the caller's.
        result(unsafe { (real().CreateSessionFromArray)(env, model, length, options, out) })?;
        // SAFETY: it was written.
        state().add_session(unsafe { *out }.addr(), options.addr())
    });
    status(made)
}

unsafe extern "system" fn release_session(session: *mut OrtSession) {
    state().remove_session(session.addr());
    // SAFETY: the caller's.
    unsafe { (real().ReleaseSession)(session) };
}

unsafe extern "system" fn add_run_entry(
    options: *mut OrtRunOptions,
    key: *const c_char,
    value: *const c_char,
) -> OrtStatusPtr {
    // SAFETY: the caller's: both end in 0.
    let (name, text) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
    if name == c"gpu_graph_id" {
        let graph = text.to_str().ok().and_then(|text| text.parse().ok());
        let noted = graph.map(|graph| state().of_run_options.insert(options.addr(), graph));
        return status(noted.map(drop).ok_or("gpu_graph_id is no number".to_owned()));
    }
    // SAFETY: the caller's.
    unsafe { (real().AddRunConfigEntry)(options, key, value) }
}

unsafe extern "system" fn release_run_options(options: *mut OrtRunOptions) {
    state().of_run_options.remove(&options.addr());
    // SAFETY: the caller's.
    unsafe { (real().ReleaseRunOptions)(options) };
}

unsafe extern "system" fn bind_input(
    binding: *mut OrtIoBinding,
    name: *const c_char,
    value: *const OrtValue,
) -> OrtStatusPtr {
    // SAFETY: the caller's.
    status(unsafe { bound(name, value) }.map(|tensor| add(binding, |of| of.inputs.push(tensor))))
}

unsafe extern "system" fn bind_output(
    binding: *mut OrtIoBinding,
    name: *const c_char,
    value: *const OrtValue,
) -> OrtStatusPtr {
    // SAFETY: the caller's.
    status(unsafe { bound(name, value) }.map(|tensor| add(binding, |of| of.outputs.push(tensor))))
}

fn add(binding: *mut OrtIoBinding, bind: impl FnOnce(&mut BoundTensors)) {
    bind(state().bindings.entry(binding.addr()).or_default());
}

/// Returns where a tensor of a device lies.
///
/// # Safety
/// The name ends in 0, and the value is the library's.
unsafe fn bound(name: *const c_char, value: *const OrtValue) -> Result<BoundTensor, String> {
    let (mut memory, mut place, mut facts, mut address) = (null(), null(), null_mut(), null_mut());
    let (mut count, mut elements) = (0, 0);
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    // SAFETY: the caller's: functions that write what they are asked for; the facts are released.
    unsafe {
        let api = real();
        result((api.GetTensorMemoryInfo)(value, &mut memory))?;
        result((api.MemoryInfoGetName)(memory, &mut place))?;
        if CStr::from_ptr(place) != c"Cuda" {
            return Err("only tensors in device memory can be bound here".to_owned());
        }
        result((api.GetTensorMutableData)(value.cast_mut(), &mut address))?;
        result((api.GetTensorTypeAndShape)(value, &mut facts))?;
        result((api.GetTensorElementType)(facts, &mut element))?;
        result((api.GetDimensionsCount)(facts, &mut count))?;
        result((api.GetTensorShapeElementCount)(facts, &mut elements))?;
        let mut shape = vec![0; count];
        result((api.GetDimensions)(facts, shape.as_mut_ptr(), count))?;
        (api.ReleaseTensorTypeAndShapeInfo)(facts);
        let bytes = elements * element_bytes(element)?;
        let (name, address) = (CStr::from_ptr(name).to_owned(), address.addr() as u64);
        Ok(BoundTensor { name, element, shape, address, bytes })
    }
}

/// Returns the bytes of an element.
fn element_bytes(element: ONNXTensorElementDataType) -> Result<usize, String> {
    match element as u32 {
        2 | 3 | 9 => Ok(1),
        4 | 5 | 10 | 16 => Ok(2),
        1 | 6 | 12 => Ok(4),
        7 | 11 | 13 => Ok(8),
        other => Err(format!("a device takes no elements of type {other}")),
    }
}

unsafe extern "system" fn release_binding(binding: *mut OrtIoBinding) {
    state().bindings.remove(&binding.addr());
    // SAFETY: the caller's.
    unsafe { (real().ReleaseIoBinding)(binding) };
}

unsafe extern "system" fn run_with_binding(
    session: *mut OrtSession,
    options: *const OrtRunOptions,
    binding: *const OrtIoBinding,
) -> OrtStatusPtr {
    let found = state().run(session.addr(), binding.addr(), options.addr());
    let run = match found {
        // SAFETY: the caller's.
        Ok(None) => return unsafe { (real().RunWithBinding)(session, options, binding) },
        Ok(Some(run)) => run,
        Err(wrong) => return status(Err(wrong)),
    };
    // SAFETY: the caller's.
    status(unsafe { run_on_host(session, options, &run) })
}

/// Runs a session on copies of a device's tensors.
///
/// # Safety
/// Both are the library's.
unsafe fn run_on_host(
    session: *mut OrtSession,
    options: *const OrtRunOptions,
    run: &BoundRun,
) -> Result<(), String> {
    run.wait()?;
    let BoundTensors { inputs, outputs } = &run.tensors;
    let read = inputs.iter().map(|tensor| HostTensor::new(tensor, run.read(tensor)?));
    let read = read.collect::<Result<Vec<_>, String>>()?;
    let written = outputs.iter().map(|tensor| HostTensor::new(tensor, vec![0; tensor.bytes.div_ceil(8)]));
    let written = written.collect::<Result<Vec<_>, String>>()?;
    let names = |of: &[BoundTensor]| of.iter().map(|tensor| tensor.name.as_ptr()).collect::<Vec<_>>();
    let (input_names, output_names) = (names(inputs), names(outputs));
    let from: Vec<*const OrtValue> = read.iter().map(|tensor| tensor.value.cast_const()).collect();
    let mut to: Vec<*mut OrtValue> = written.iter().map(|tensor| tensor.value).collect();
    // SAFETY: as many names as values, which outlive the call.
    result(unsafe {
        let (given, asked) = (input_names.as_ptr(), output_names.as_ptr());
        (real().Run)(session, options, given, from.as_ptr(), from.len(), asked, to.len(), to.as_mut_ptr())
    })?;
    outputs.iter().zip(&written).try_for_each(|(tensor, host)| run.write(tensor, &host.words))
}

/// A tensor of the host, as the library takes it.
struct HostTensor {
    value: *mut OrtValue,
    /// What it has; the value refers to it.
    words: Vec<u64>,
}

impl HostTensor {
    fn new(of: &BoundTensor, mut words: Vec<u64>) -> Result<HostTensor, String> {
        let (mut memory, mut value) = (null_mut(), null_mut());
        let (allocator, kind) = (OrtAllocatorType::OrtDeviceAllocator, OrtMemType::OrtMemTypeDefault);
        // SAFETY: writes two addresses; the words outlive the value.
        unsafe {
            result((real().CreateCpuMemoryInfo)(allocator, kind, &mut memory))?;
            let (data, shape) = (words.as_mut_ptr().cast(), of.shape.as_ptr());
            let create = real().CreateTensorWithDataAsOrtValue;
            let made = result(create(memory, data, of.bytes, shape, of.shape.len(), of.element, &mut value));
            (real().ReleaseMemoryInfo)(memory);
            made?;
        }
        Ok(HostTensor { value, words })
    }
}

impl Drop for HostTensor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and released once.
        unsafe { (real().ReleaseValue)(self.value) };
    }
}
