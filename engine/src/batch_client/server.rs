//! A model behind a server of the Open Inference Protocol, over HTTP with binary tensors
//! (docs/api.md). Requests ask for no deadline, which makes them of the lowest class.

use super::pictures::PixelScale;
use super::source::{InputRows, RowTensors, row_shapes};
use super::target::{RowTarget, RunFault};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use symphony_gpu::{DataType, Signature, TensorSpec};
use ureq::Agent;
use ureq::http::StatusCode;

/// The header with the length of the JSON before binary tensors.
const JSON_LENGTH: &str = "inference-header-content-length";

/// The longest wait for an answer: work of the lowest class may wait long.
const LONGEST_REQUEST: Duration = Duration::from_secs(3600);

/// The longest wait for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes.
const LARGEST_ANSWER: u64 = 2 << 30;

/// A model of a server.
pub(crate) struct ServerTarget {
    agent: Agent,
    /// `http://HOST:PORT/v2/models/NAME/versions/VERSION`
    model_url: String,
    /// The header of a bearer token.
    authorization: Option<String>,
    identity: Vec<String>,
    signature: Signature,
}

#[derive(Deserialize)]
struct ServedModel {
    name: String,
    versions: Vec<String>,
    inputs: Vec<ServedTensor>,
    outputs: Vec<ServedTensor>,
}

#[derive(Deserialize)]
struct ServedTensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

#[derive(Deserialize)]
struct ServedAnswer {
    outputs: Vec<ServedOutput>,
}

#[derive(Deserialize)]
struct ServedOutput {
    name: String,
    shape: Vec<i64>,
    parameters: ServedParameters,
}

#[derive(Deserialize)]
struct ServedParameters {
    binary_data_size: usize,
}

#[derive(Deserialize)]
struct ServerError {
    error: String,
}

impl ServerTarget {
    /// Finds the newest version of `model` at the server `url`, such as `http://127.0.0.1:8000`,
    /// which may require a bearer token. Sizes that the model leaves open are those of the arrays
    /// in `rows`, and of the answer to the first row there.
    ///
    /// Errors: no such server or model, or a model whose requests are not made here.
    pub(crate) fn find(
        url: &str,
        model: &str,
        token: Option<&str>,
        rows: &Path,
    ) -> Result<ServerTarget, String> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") {
            return Err(format!("{url:?} is no address of a server; give one like http://127.0.0.1:8000"));
        }
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("the token has characters that no token has; put it on a line of its own".to_owned());
        }
        let authorization = token.map(|token| format!("Bearer {token}"));
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(LONGEST_REQUEST))
            .timeout_connect(Some(CONNECT_WITHIN))
            .max_idle_connections(usize::MAX)
            .max_idle_connections_per_host(usize::MAX)
            .build()
            .new_agent();
        let model_url = format!("{url}/v2/models/{}", utf8_percent_encode(model, NON_ALPHANUMERIC));
        let mut target = ServerTarget {
            agent,
            model_url,
            authorization,
            identity: vec![],
            signature: Signature::default(),
        };
        let served = target.metadata().map_err(|error| format!("{url}: model \"{model}\": {error}"))?;
        let version =
            newest(&served.versions).ok_or_else(|| format!("{url}: no version of \"{model}\" is served"))?;
        target.model_url += &format!("/versions/{version}");
        // A model without a batch has whole shapes.
        let has_batch = served.inputs.iter().all(|input| input.shape.first() == Some(&-1));
        let outputs = &served.outputs;
        target.signature = Signature {
            inputs: input_specs(&served.inputs, has_batch, rows)?,
            has_batch,
            ..Signature::default()
        };
        let is_open = |output: &ServedTensor| output.row(has_batch).contains(&-1);
        let found = if outputs.iter().any(is_open) { target.first_answer(rows)? } else { Vec::new() };
        let spec = |output: &ServedTensor| {
            let answered = found.iter().find(|of| of.name == output.name);
            output.spec(has_batch, answered.map(|of| of.row(has_batch)))
        };
        target.signature.outputs = outputs.iter().map(spec).collect::<Result<_, _>>()?;
        target.identity =
            vec![format!("{} version {version}", served.name), format!("{:?}", target.signature)];
        Ok(target)
    }

    fn metadata(&self) -> Result<ServedModel, String> {
        let mut request = self.agent.get(&self.model_url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut answer =
            request.call().map_err(|error| format!("no answer: {error}; is the server running?"))?;
        let body = answer.body_mut().read_to_vec().map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(words(answer.status(), &body));
        }
        serde_json::from_slice(&body).map_err(|error| format!("is not described as expected: {error}"))
    }

    /// Sends the first row of `path`, and returns the outputs of its answer.
    fn first_answer(&self, path: &Path) -> Result<Vec<ServedOutput>, String> {
        let unpacked = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let rows = InputRows::open(path, &self.signature, PixelScale::default(), unpacked.path())?;
        if rows.rows() == 0 {
            return Err(format!(
                "{}: has no rows, of which the first would say the sizes of outputs",
                path.display()
            ));
        }
        let row = rows.read(0).map_err(|wrong| format!("{}: {wrong}", rows.row_name(0)))?;
        let answer = self.answer(&[row]).map_err(|fault| match fault {
            RunFault::Overloaded => "the server is overloaded".to_owned(),
            RunFault::Unreachable(why) | RunFault::Rows(why) | RunFault::Refused(why) => why,
        });
        let (body, length) = answer.map_err(|why| format!("{}: {why}", rows.row_name(0)))?;
        let head = body.get(..length).unwrap_or_default();
        let answer: ServedAnswer =
            serde_json::from_slice(head).map_err(|error| format!("an answer can't be read: {error}"))?;
        Ok(answer.outputs)
    }

    /// Returns the body of a request and the length of its JSON.
    fn body(&self, rows: &[RowTensors]) -> (Vec<u8>, usize) {
        let inputs = self.signature.inputs.iter().map(|input| {
            let shape = self.signature.batch_shape(input, rows.len());
            json!({
                "name": input.name,
                "datatype": input.datatype.name(),
                "shape": shape,
                "parameters": { "binary_data_size": input.bytes() * rows.len() },
            })
        });
        let head = json!({
            "parameters": { "deadline": "none", "binary_data_output": true },
            "inputs": inputs.collect::<Vec<_>>(),
        });
        let mut body = head.to_string().into_bytes();
        let length = body.len();
        for at in 0..self.signature.inputs.len() {
            rows.iter().for_each(|row| body.extend_from_slice(&row[at]));
        }
        (body, length)
    }

    /// Returns the outputs in the body of an answer whose JSON has `length` bytes.
    fn outputs(&self, rows: usize, body: &[u8], length: usize) -> Result<Vec<Vec<u8>>, String> {
        let (head, mut rest) = body.split_at_checked(length).ok_or("it is shorter than its JSON")?;
        let answer: ServedAnswer = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        let mut found = vec![None; self.signature.outputs.len()];
        for output in answer.outputs {
            let size = output.parameters.binary_data_size;
            let (bytes, after) = rest.split_at_checked(size).ok_or("it is shorter than its outputs")?;
            rest = after;
            let at = self.signature.outputs.iter().position(|spec| spec.name == output.name);
            if let Some(at) = at.filter(|&at| self.signature.outputs[at].bytes() * rows == size) {
                found[at] = Some(bytes.to_vec());
            }
        }
        let whole: Option<Vec<Vec<u8>>> = found.into_iter().collect();
        whole.ok_or_else(|| {
            "an output is missing, or not of the size that the model's metadata says".to_owned()
        })
    }
}

impl RowTarget for ServerTarget {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn identity(&self) -> Vec<String> {
        self.identity.clone()
    }

    fn run(&self, rows: &[RowTensors]) -> Result<Vec<Vec<u8>>, RunFault> {
        if self.signature.has_batch {
            return self.request(rows);
        }
        let mut all = vec![Vec::new(); self.signature.outputs.len()];
        for row in rows {
            let outputs = self.request(std::slice::from_ref(row))?;
            all.iter_mut().zip(outputs).for_each(|(all, output)| all.extend(output));
        }
        Ok(all)
    }
}

impl ServerTarget {
    /// Sends one request, and returns the bytes of each output.
    fn request(&self, rows: &[RowTensors]) -> Result<Vec<Vec<u8>>, RunFault> {
        let (body, length) = self.answer(rows)?;
        let wrong = |wrong| RunFault::Refused(format!("an answer can't be read: {wrong}"));
        self.outputs(rows.len(), &body, length).map_err(wrong)
    }

    /// Sends one request, and returns the body of its answer and the length of the JSON in it.
    fn answer(&self, rows: &[RowTensors]) -> Result<(Vec<u8>, usize), RunFault> {
        let (body, length) = self.body(rows);
        let mut request = self.agent.post(format!("{}/infer", self.model_url)).header(JSON_LENGTH, length);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let unreachable = |error: ureq::Error| RunFault::Unreachable(error.to_string());
        let mut answer = request.send(&body[..]).map_err(unreachable)?;
        let status = answer.status();
        let length = answer.headers().get(JSON_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let body =
            answer.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec().map_err(unreachable)?;
        match status {
            StatusCode::OK => {
                let length = length.unwrap_or(body.len());
                Ok((body, length))
            }
            StatusCode::TOO_MANY_REQUESTS => Err(RunFault::Overloaded),
            StatusCode::SERVICE_UNAVAILABLE => Err(RunFault::Unreachable(words(status, &body))),
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::GATEWAY_TIMEOUT => {
                Err(RunFault::Rows(words(status, &body)))
            }
            _ => Err(RunFault::Refused(words(status, &body))),
        }
    }
}

impl ServedOutput {
    /// Returns the shape of a row.
    fn row(&self, has_batch: bool) -> &[i64] {
        self.shape.get(usize::from(has_batch)..).unwrap_or_default()
    }
}

impl ServedTensor {
    /// Returns the shape of a row, in which -1 is any size.
    fn row(&self, has_batch: bool) -> &[i64] {
        self.shape.get(usize::from(has_batch)..).unwrap_or_default()
    }

    /// Returns the tensor of one row, which has this shape where its sizes are open.
    fn spec(&self, has_batch: bool, found: Option<&[i64]>) -> Result<TensorSpec, String> {
        let ServedTensor { name, datatype: type_name, .. } = self;
        let datatype = DataType::parse(type_name).ok_or_else(|| {
            format!("the tensor \"{name}\" is of type {type_name}, which no .npy file here can hold")
        })?;
        let row = self.row(has_batch);
        let found = found.unwrap_or(row);
        let fits = |(&served, &found): (&i64, &i64)| found >= 0 && (served == found || served == -1);
        if row.len() != found.len() || !row.iter().zip(found).all(fits) {
            return Err(format!(
                "the tensor \"{name}\" has rows of the shape {row:?}, and those given {found:?}"
            ));
        }
        let shape = found.iter().map(|&size| size as usize).collect();
        Ok(TensorSpec { name: name.clone(), datatype, shape })
    }
}

/// Returns the inputs, whose open sizes are those of the arrays in `rows`.
fn input_specs(inputs: &[ServedTensor], has_batch: bool, rows: &Path) -> Result<Vec<TensorSpec>, String> {
    let is_open = inputs.iter().any(|input| input.row(has_batch).contains(&-1));
    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let found = if is_open { row_shapes(rows, &names)? } else { Vec::new() };
    let found: Vec<Vec<i64>> =
        found.iter().map(|shape| shape.iter().map(|&size| size as i64).collect()).collect();
    let spec = |(at, input): (usize, &ServedTensor)| input.spec(has_batch, found.get(at).map(Vec::as_slice));
    inputs.iter().enumerate().map(spec).collect()
}

/// Returns the newest of some versions.
fn newest(versions: &[String]) -> Option<&String> {
    versions.iter().max_by_key(|version| version.parse::<u64>().unwrap_or_default())
}

/// Returns the server's words about an error.
fn words(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<ServerError>(body) {
        Ok(ServerError { error }) => error,
        Err(_) => format!("the server answered {status}"),
    }
}
