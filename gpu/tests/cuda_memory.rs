//! The memory of a GPU on a fake driver: pages that are taken once, weights that come and go at the
//! same addresses, and what becomes of both when calls fail.

#[path = "harness/adding.rs"]
mod adding;
#[path = "harness/model_rows.rs"]
mod model_rows;

use adding::{PAGE, adding, gives};
use proptest::prelude::*;
use std::sync::Arc;
use symphony_fake_driver::{FakeDriver, Fault, driver_error};
use symphony_gpu::CudaModel;
use symphony_gpu::cuda::{CudaDevice, CudaDevices};

/// The pages of the four lanes, which every model shares.
const SHARED: u32 = 4;

/// A GPU with this many pages, of which a part is kept back.
fn gpu(pages: usize) -> (Arc<FakeDriver>, Arc<CudaDevice>) {
    let driver = FakeDriver::new(&[((pages + 1) * PAGE * 16 / 15) as u64]);
    let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
    (driver, device)
}

fn counts(device: &CudaDevice) -> (u32, u32) {
    (device.pages().free, device.pages().total)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Load(usize),
    Unload(usize),
    Run(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let model = 0..3usize;
    prop_oneof![
        model.clone().prop_map(Step::Load),
        model.clone().prop_map(Step::Unload),
        model.prop_map(Step::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Two of three models have room. A page in two models would be a wrong answer.
    #[test]
    fn weights_come_and_go_and_answers_stay_right(steps in prop::collection::vec(step(), 1..24)) {
        let (driver, device) = gpu(SHARED as usize + 4);
        let total = device.pages().total;
        let mut models = Vec::new();
        for number in 0..3 {
            let model = CudaModel::new(adding(number as f32), &device).unwrap();
            model.weights().unload().unwrap();
            models.push(model);
        }
        let captured = driver.calls(0)["end_capture"];
        let mut is_there = [false; 3];
        for step in steps {
            match step {
                Step::Load(at) => {
                    let has_room = is_there[at] || is_there.iter().filter(|is_there| **is_there).count() < 2;
                    let loaded = models[at].weights().load();
                    prop_assert_eq!(loaded.is_ok(), has_room, "{:?}", loaded);
                    if let Err(why) = loaded {
                        let said = format!("2 pages of 16.8 MB are needed and {} of {total} ", total - SHARED - 4);
                        prop_assert!(why.contains(&said), "{}", why);
                    }
                    is_there[at] |= has_room;
                }
                Step::Unload(at) => {
                    let freed = models[at].weights().unload();
                    prop_assert_eq!(freed, Ok(if is_there[at] { 2 } else { 0 }));
                    is_there[at] = false;
                }
                Step::Run(at) if is_there[at] => prop_assert!(gives(&mut models[at], 1.0 + at as f32)),
                Step::Run(at) => {
                    let refused = symphony_gpu::HostModel::run(&mut models[at], 1).unwrap_err().to_string();
                    prop_assert!(refused.contains("its weights are not on the GPU"), "{}", refused);
                }
            }
            let used = SHARED + 2 * is_there.iter().filter(|is_there| **is_there).count() as u32;
            prop_assert_eq!(counts(&device), (total - used, total));
            prop_assert_eq!(driver.live(0)["mapped"] as u32, used);
        }
        prop_assert_eq!(driver.calls(0)["end_capture"], captured, "graphs survive LOAD and UNLOAD");
        drop(models);
        prop_assert_eq!(counts(&device), (total, total), "what models share goes with the last one");
        drop(device);
        prop_assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
    }
}

#[test]
fn a_load_or_unload_whose_calls_fail_leaks_nothing_and_works_once_they_do() {
    for call in ["map", "allow", "record", "copy_in", "is_over", "elapsed", "unmap"] {
        // A LOAD may look for its end once only.
        for after in 0..if call == "is_over" { 1 } else { 2 } {
            let (driver, device) = gpu(SHARED as usize + 3);
            let mut model = CudaModel::new(adding(2.0), &device).unwrap();
            let (there, live) = (counts(&device), driver.live(0));
            model.weights().unload().unwrap();
            let gone = counts(&device);
            assert_eq!(gone.0, there.0 + 2);
            let error = driver_error(call, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
            driver.plan_fault(0, call, after, Fault::Refuse(error));
            let mut failures = 0;
            // The second call of one that is made once in a LOAD is the next LOAD's.
            for _ in 0..3 {
                match model.weights().load() {
                    Ok(_) => assert_eq!(counts(&device), there, "{call} {after}"),
                    Err(why) => {
                        assert!(why.contains("CUDA_ERROR_INVALID_VALUE"), "{call} {after}: {why}");
                        assert_eq!(counts(&device), gone, "{call} {after}");
                        failures += 1;
                        continue;
                    }
                }
                assert!(gives(&mut model, 3.0), "{call} {after}");
                if let Err(why) = model.weights().unload() {
                    assert!(
                        call == "unmap" && why.contains("CUDA_ERROR_INVALID_VALUE"),
                        "{call} {after}: {why}"
                    );
                    assert!(!model.weights().is_there());
                    failures += 1;
                    model.weights().unload().unwrap();
                }
                assert_eq!(counts(&device), gone, "{call} {after}");
            }
            assert_eq!(failures, 1, "{call} {after}");
            model.weights().load().unwrap();
            assert!(gives(&mut model, 3.0));
            assert_eq!((counts(&device), driver.live(0)), (there, live), "{call} {after}");
        }
    }
}

#[test]
fn what_is_not_mapped_at_the_moment_is_a_fault_of_the_device() {
    let (driver, device) = gpu(2);
    let calls = device.open.calls();
    let granularity = calls.page_granularity().unwrap().unwrap();
    let (page, at) = (calls.create_page(granularity).unwrap(), calls.reserve(2 * granularity).unwrap().start);
    assert!(calls.allow(at, granularity).is_err(), "no page is there");
    calls.map(at, page, granularity).unwrap();
    assert!(calls.map(at, page, granularity).is_err(), "a page is there");
    let (stream, event) = (calls.create_stream().unwrap(), calls.create_event().unwrap());
    let zero = || {
        calls.zero(at, granularity, stream).and_then(|()| calls.record(event, stream))?;
        loop {
            match calls.is_over(event) {
                Ok(false) => std::thread::yield_now(),
                other => return other,
            }
        }
    };
    calls.allow(at, granularity).unwrap();
    assert_eq!(zero(), Ok(true));
    calls.unmap(at, granularity).unwrap();
    let lost = zero().unwrap_err();
    assert!(lost.ends_device() && lost.to_string().contains("no page is mapped there"), "{lost}");
    drop(driver);
}

#[test]
fn a_gpu_that_can_not_map_pages_serves_and_says_that_weights_stay() {
    let driver = FakeDriver::new(&[(12 * PAGE) as u64]);
    driver.map_nothing(0);
    let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
    assert!(!device.maps_pages());
    let mut models = [1.0, 2.0].map(|number| CudaModel::new(adding(number), &device).unwrap());
    assert!(gives(&mut models[0], 2.0) && gives(&mut models[1], 3.0));
    let refused = models[0].weights().unload().unwrap_err();
    assert!(refused.contains("can't map pages") && refused.contains("weights stay"), "{refused}");
    assert!(gives(&mut models[0], 2.0));
    drop(models);
    assert_eq!(device.pages().free, device.pages().total - SHARED, "what models share stays");
    drop(device);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}
