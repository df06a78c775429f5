//! `symphony run` as users call it: a server of its own process, or none; folders of pictures and
//! arrays; interruptions at any moment.

mod harness;

use harness::process::{ServerProcess, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// The bytes of the header that numpy.save writes for an array of few dimensions.
const HEADER: usize = 128;

fn quickstart(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart").join(file)
}

/// A server of the model `shapes`, which takes pictures of [3, 32, 32].
fn serve(folder: &Path) -> ServerProcess {
    let config = folder.join("symphony.toml");
    let model = "name = \"shapes\"\nslo_ms = 60000\nprofile = { alpha_ms = 1, beta_ms = 1 }\nmax_batch = 4\n";
    let file = quickstart("shapes.onnx");
    let text = format!("[[executors]]\nkind = \"cpu\"\n[[models]]\n{model}file = {file:?}\n");
    fs::write(&config, text).unwrap();
    let mut command = symphony(&["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    ServerProcess::start(command.arg(config), Stdio::null())
}

fn symphony(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(arguments);
    command
}

/// A run of `input` into `folder/NAME`, one row a request and one request after the other: a row's
/// output may depend in its last bits on the size of its batch.
fn run(model: &[&str], input: &Path, folder: &TempDir, name: &str) -> Command {
    let mut command = symphony(&["run", "--rows", "1", "--in-flight", "1"]);
    command.args(model).arg("--input").arg(input).arg("--output").arg(folder.path().join(name));
    command
}

fn finish(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn succeed(command: &mut Command) {
    let output = finish(command);
    assert!(output.status.success(), "{}", words(&output));
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes an array [rows, 3, 32, 32] of seeded values as numpy.save does.
fn write_rows(path: &Path, rows: usize) {
    fs::write(path, npy(&[rows, 3, 32, 32])).unwrap();
}

/// An array of this shape, of seeded values, as numpy.save writes it.
fn npy(shape: &[usize]) -> Vec<u8> {
    let sizes = shape.iter().map(|size| format!("{size}, ")).collect::<String>();
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(((HEADER - 10) as u16).to_le_bytes());
    bytes.extend(format!("{dictionary:<width$}\n", width = HEADER - 11).bytes());
    let value = |at: usize| (at.wrapping_mul(2_654_435_761) % 1_000) as f32 / 1_000.0;
    bytes.extend((0..shape.iter().product()).flat_map(|at| value(at).to_le_bytes()));
    bytes
}

/// Writes an archive of arrays of these shapes.
fn write_arrays(path: &Path, arrays: &[(&str, &[usize])]) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, shape) in arrays {
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(&npy(shape)).unwrap();
    }
    archive.finish().unwrap();
}

/// Writes a picture of one colour.
fn write_picture(path: &Path, red: u8) {
    image::RgbImage::from_pixel(40, 20, image::Rgb([red, 100, 50])).save(path).unwrap();
}

/// Returns the bytes of an array in a .npz file.
fn array(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    std::io::copy(&mut archive.by_name(&format!("{name}.npy")).ok()?, &mut bytes).unwrap();
    Some(bytes[HEADER..].to_vec())
}

/// Returns the number of rows that the run into `output` has marked as done.
fn marked(output: &Path) -> usize {
    let marks = fs::read(format!("{}.part/rows", output.display())).unwrap_or_default();
    marks.iter().filter(|mark| **mark == 1).count()
}

/// Stops the server once some rows are marked, so that the run can't end meanwhile.
fn stop_half_way(server: &ServerProcess, output: &Path) {
    wait_until("some rows are done", || marked(output) > 0);
    server.signal("-STOP");
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_run_that_is_interrupted_or_killed_goes_on_and_writes_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let input = folder.path().join("in.npy");
    write_rows(&input, 3_000);
    let model = ["shapes", "--server", &server.urls()[0]];
    succeed(&mut run(&model, &input, &folder, "whole.npz"));
    let output = folder.path().join("out.npz");
    for name in ["-KILL", "-INT"] {
        let before = marked(&output);
        let mut command = run(&model, &input, &folder, "out.npz");
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_until("further rows are done", || marked(&output) > before);
        server.signal("-STOP");
        signal(&child, name);
        if name == "-INT" {
            // The first ends the run once the request in flight is answered.
            server.signal("-CONT");
        }
        let ended = child.wait_with_output().unwrap();
        server.signal("-CONT");
        assert!(!ended.status.success() && !output.exists());
        if name == "-INT" {
            let words = words(&ended);
            assert_eq!(ended.status.code(), Some(1), "{words}");
            assert!(words.contains("interrupted") && words.contains("out.npz.part"), "{words}");
        }
    }
    let done = marked(&output);
    let last = finish(&mut run(&model, &input, &folder, "out.npz"));
    assert!(last.status.success(), "{}", words(&last));
    assert!(words(&last).contains(&format!("{done} of 3000 rows are done already")), "{}", words(&last));
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("out.npz") == read("whole.npz"), "the bytes differ");
    assert!(!folder.path().join("out.npz.part").exists());
}

#[test]
fn a_run_outlives_its_server_and_refuses_other_inputs_until_it_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = serve(folder.path());
    let input = folder.path().join("in.npy");
    write_rows(&input, 2_000);
    let url = server.urls()[0].clone();
    let output = folder.path().join("out.npz");
    let model = ["shapes", "--server", &url, "--patience", "0"];
    let child = run(&model, &input, &folder, "out.npz").stderr(Stdio::piped()).spawn().unwrap();
    stop_half_way(&server, &output);
    server.kill();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", words(&ended));
    assert!(words(&ended).contains("rows are done and kept in"), "{}", words(&ended));

    let server = serve(folder.path());
    let model = ["shapes", "--server", &server.urls()[0]];
    let done = marked(&output);
    write_rows(&input, 10);
    let refused = finish(&mut run(&model, &input, &folder, "out.npz"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(words(&refused).contains("--restart"), "{}", words(&refused));
    assert_eq!(marked(&output), done, "what was done is left alone");
    succeed(run(&model, &input, &folder, "out.npz").arg("--restart"));
    let again = finish(&mut run(&model, &input, &folder, "out.npz"));
    assert_eq!(again.status.code(), Some(2), "an output is not replaced unasked");
}

#[test]
fn a_damaged_picture_is_listed_and_the_others_are_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let pictures = folder.path().join("pictures");
    fs::create_dir(&pictures).unwrap();
    write_picture(&pictures.join("a.png"), 10);
    write_picture(&pictures.join("c.jpg"), 200);
    fs::write(pictures.join("b.png"), "no picture").unwrap();
    let model = ["shapes", "--server", &server.urls()[0]];
    let ended = finish(&mut run(&model, &pictures, &folder, "out.npz"));
    assert_eq!(ended.status.code(), Some(1), "{}", words(&ended));
    assert!(words(&ended).contains("b.png: is no picture"), "{}", words(&ended));
    let output = folder.path().join("out.npz");
    assert_eq!(array(&output, "failed").unwrap(), [0, 1, 0]);
    let files = array(&output, "files").unwrap();
    let letters: Vec<u8> = files.chunks_exact(5 * 4).map(|name| name[0]).collect();
    assert_eq!(letters, b"abc");
}

#[test]
fn a_model_in_the_process_gives_what_a_server_gives() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let input = folder.path().join("in.npy");
    write_rows(&input, 40);
    let file = quickstart("shapes.onnx");
    let version = folder.path().join("models/named/1");
    fs::create_dir_all(&version).unwrap();
    fs::copy(&file, version.join("model.onnx")).unwrap();
    let (file, named) =
        (file.display().to_string(), folder.path().join("models/named").display().to_string());
    let targets: [&[&str]; 3] = [&["shapes", "--server", &server.urls()[0]], &[&file], &[&named]];
    for (target, name) in targets.into_iter().zip(["served.npz", "file.npz", "folder.npz"]) {
        succeed(&mut run(target, &input, &folder, name));
    }
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("served.npz") == read("file.npz") && read("file.npz") == read("folder.npz"));
    // Many rows a request, many requests at once.
    let mut together = symphony(&["run", &file]);
    let output = folder.path().join("together.npz");
    succeed(together.arg("--input").arg(&input).arg("--output").arg(&output));
    assert_eq!(fs::metadata(output).unwrap().len(), read("file.npz").len() as u64);
}

/// A server of this model of a file among the fixtures.
fn serve_fixture(folder: &Path, file: &str, keys: &str) -> ServerProcess {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data").join(file);
    let text = format!(
        "[[executors]]\nkind = \"cpu\"\n[[models]]\nname = \"m\"\nslo_ms = 60000\nmax_batch = 4\nfile = {fixture:?}\n{keys}"
    );
    fs::write(folder.join("symphony.toml"), text).unwrap();
    let mut command = symphony(&["serve", "--http", "127.0.0.1:0"]);
    ServerProcess::start(command.arg(folder), Stdio::null())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

#[test]
fn sizes_that_a_model_leaves_open_are_those_of_the_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let keys = "sizes = [{ dimension = \"steps\", buckets = [2, 4, 9] }]\n";
    let server = serve_fixture(folder.path(), "masked_steps.onnx", keys);
    let input = folder.path().join("in.npz");
    write_arrays(&input, &[("x", &[5, 3, 2]), ("mask", &[5, 3])]);
    let model = ["m", "--server", &server.urls()[0]];
    let mut command = symphony(&["run", "m", "--server", &server.urls()[0], "--rows", "2"]);
    succeed(command.arg("--input").arg(&input).arg("--output").arg(folder.path().join("out.npz")));
    let (output, rows) = (folder.path().join("out.npz"), floats(&npy(&[5, 3, 2])[HEADER..]));
    let mask = floats(&npy(&[5, 3])[HEADER..]);
    let expected: Vec<f32> = rows.iter().enumerate().map(|(at, x)| x * mask[at / 2]).collect();
    assert_eq!(floats(&array(&output, "left").unwrap()), expected);
    assert_eq!(array(&output, "seconds").unwrap().len(), 5 * 2 * 2 * 4);
    // A folder's first array says the sizes of all.
    let rows = folder.path().join("rows");
    fs::create_dir(&rows).unwrap();
    let refused = finish(&mut run(&model, &rows, &folder, "none.npz"));
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    assert!(words(&refused).contains("has no .npy file, which would say the sizes"), "{}", words(&refused));
}

#[test]
fn a_model_without_a_batch_is_run_by_a_server_and_in_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve_fixture(folder.path(), "sums_the_batch.onnx", "");
    let input = folder.path().join("in.npy");
    fs::write(&input, npy(&[6, 1, 4])).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/sums_the_batch.onnx");
    let local = [fixture.to_str().unwrap()];
    for (model, name) in [(&["m", "--server", &server.urls()[0]][..], "served.npz"), (&local, "local.npz")] {
        let mut command = symphony(&["run", "--rows", "4"]);
        command.args(model).arg("--input").arg(&input);
        succeed(command.arg("--output").arg(folder.path().join(name)));
        assert_eq!(array(&folder.path().join(name), "y").unwrap(), npy(&[6, 1, 4])[HEADER..], "{name}");
    }
}

/// Answers one request: metadata, or a 429 for the first of each three requests, else the row sums
/// of `x`.
fn answer_one(stream: &mut TcpStream, asked: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut first, mut json, mut length) = (String::new(), 0, 0);
    (reader.read_line(&mut first).ok()? > 0).then_some(())?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "inference-header-content-length" => json = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (status, head, content) = if first.starts_with("GET") {
        let tensor = |name: &str, row: &str| {
            format!("{{\"name\":\"{name}\",\"datatype\":\"FP32\",\"shape\":[-1{row}]}}")
        };
        let (x, y) = (tensor("x", ",2"), tensor("y", ""));
        let text = format!(
            "{{\"name\":\"m\",\"versions\":[\"1\"],\"platform\":\"p\",\"inputs\":[{x}],\"outputs\":[{y}]}}"
        );
        ("200 OK", String::new(), text.into_bytes())
    } else if asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
        ("429 Too Many Requests", String::new(), b"{\"error\":\"too much\"}".to_vec())
    } else {
        let sums: Vec<f32> = floats(&body[json..]).chunks(2).map(|row| row.iter().sum()).collect();
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let text = format!(
            "{{\"outputs\":[{{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[{}],\
             \"parameters\":{{\"binary_data_size\":{}}}}}]}}",
            sums.len(),
            bytes.len()
        );
        let head = format!("inference-header-content-length: {}\r\n", text.len());
        ("200 OK", head, [text.into_bytes(), bytes].concat())
    };
    write!(stream, "HTTP/1.1 {status}\r\n{head}content-length: {}\r\n\r\n", content.len()).ok()?;
    stream.write_all(&content).ok()
}

#[test]
fn a_server_that_is_overloaded_is_asked_again_until_all_rows_are_done() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let asked = Arc::clone(&counted);
            std::thread::spawn(move || while answer_one(&mut stream, &asked).is_some() {});
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.npy");
    fs::write(&input, npy(&[40, 2])).unwrap();
    let mut command = symphony(&["run", "m", "--server", &url, "--rows", "4", "--in-flight", "4"]);
    succeed(command.arg("--input").arg(&input).arg("--output").arg(folder.path().join("out.npz")));
    let expected: Vec<f32> = floats(&npy(&[40, 2])[HEADER..]).chunks(2).map(|row| row.iter().sum()).collect();
    assert_eq!(floats(&array(&folder.path().join("out.npz"), "y").unwrap()), expected);
    // Ten requests are answered, and each third is refused.
    assert!(asked.load(Ordering::Relaxed) >= 15, "{asked:?}");
}

#[test]
fn a_model_that_is_not_there_is_told_with_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.npy");
    write_rows(&input, 1);
    let server = serve(folder.path());
    let targets: [&[&str]; 3] = [
        &["absent.onnx"],
        &["absent", "--server", &server.urls()[0]],
        &["shapes", "--server", "http://127.0.0.1:1"],
    ];
    for (target, word) in targets.into_iter().zip(["absent.onnx: can't be read", "absent", "no answer"]) {
        let ended = finish(&mut run(target, &input, &folder, "out.npz"));
        assert_eq!(ended.status.code(), Some(2), "{}", words(&ended));
        assert!(words(&ended).contains(word), "{}", words(&ended));
    }
    assert!(!folder.path().join("out.npz.part").exists());
}
