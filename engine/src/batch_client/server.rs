//! A model behind a server of the Open Inference Protocol, over HTTP with binary tensors
//! (docs/api.md). Requests ask for no deadline, which makes them of the lowest class.

use super::source::RowTensors;
use super::target::{RowTarget, RunFault};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;
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
    /// which may require a bearer token.
    ///
    /// Errors: no such server or model, or a model whose requests are not made here.
    pub(crate) fn find(url: &str, model: &str, token: Option<&str>) -> Result<ServerTarget, String> {
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
        let specs = |tensors: Vec<ServedTensor>| tensors.into_iter().map(ServedTensor::spec).collect();
        let (inputs, outputs): (Result<_, String>, Result<_, String>) =
            (specs(served.inputs), specs(served.outputs));
        target.signature = Signature::of_rows(inputs?, outputs?);
        target.model_url += &format!("/versions/{version}");
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

    /// Returns the body of a request and the length of its JSON.
    fn body(&self, rows: &[RowTensors]) -> (Vec<u8>, usize) {
        let inputs = self.signature.inputs.iter().map(|input| {
            let shape = [&[rows.len()], &input.shape[..]].concat();
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
                let wrong = |wrong| RunFault::Refused(format!("an answer can't be read: {wrong}"));
                self.outputs(rows.len(), &body, length).map_err(wrong)
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

impl ServedTensor {
    /// Returns the tensor of one row.
    fn spec(self) -> Result<TensorSpec, String> {
        let ServedTensor { name, datatype: type_name, shape } = self;
        let datatype = DataType::parse(&type_name).ok_or_else(|| {
            format!("the tensor \"{name}\" is of type {type_name}, which no .npy file here can hold")
        })?;
        let row = shape.get(1..).unwrap_or_default();
        let row = row.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>().map_err(|_| {
            format!("the tensor \"{name}\" has the shape {shape:?}; only the first dimension may vary here")
        })?;
        Ok(TensorSpec { name, datatype, shape: row })
    }
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
