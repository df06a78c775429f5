//! The deadline, the class and the application of an infer request. A client gives the deadline in
//! gRPC's `grpc-timeout`, in `parameters.timeout` or in the header `X-Request-Deadline-Ms`; the
//! tightest of these and of the model's SLO counts. `parameters.deadline = "none"`, or `none` in
//! the header, asks for no deadline.

use crate::api::problem::{Problem, shortened};
use crate::runtime::frontend::{Class, Due, ModelInfo};
use std::time::Instant;
use symphony_transport::Nanos;

/// A value of a request's parameters, of whatever type a client gave it.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::api) enum ParameterValue {
    /// A whole number.
    Number(i128),
    /// A string.
    Text(String),
    /// Anything else.
    Other,
}

impl ParameterValue {
    /// Returns the whole number that it is, or that its text is.
    fn number(&self) -> Option<i128> {
        match self {
            ParameterValue::Number(number) => Some(*number),
            ParameterValue::Text(text) => text.parse().ok(),
            ParameterValue::Other => None,
        }
    }
}

/// The deadline, the class and the application of one request, as far as they are given.
#[derive(Clone, Debug)]
pub(in crate::api) struct RequestDeadline {
    /// The time at which the request's head was complete.
    start: Instant,
    /// The request's own parameter, which counts from the engine's acceptance.
    timeout: Option<Nanos>,
    /// The tightest of the headers, which count from `start`.
    patience: Option<Nanos>,
    /// True if the client asked for no deadline.
    never: bool,
    class: Option<Class>,
    /// The highest class in which the request may be served.
    highest: Class,
    application: Option<Box<str>>,
}

impl RequestDeadline {
    /// Creates the deadline of a request whose head is complete now, with nothing given.
    pub(in crate::api) fn new() -> RequestDeadline {
        let (start, highest) = (Instant::now(), Class::HIGHEST);
        RequestDeadline {
            start,
            timeout: None,
            patience: None,
            never: false,
            class: None,
            highest,
            application: None,
        }
    }

    /// Lets the request be served in no class above `highest`.
    pub(in crate::api) fn limit_class(&mut self, highest: Class) {
        self.highest = highest;
    }

    /// Applies the header `X-Request-Deadline-Ms`.
    ///
    /// Errors: 400 if it is neither `none` nor a number.
    pub(in crate::api) fn deadline_header(&mut self, value: &[u8]) -> Result<(), Problem> {
        if value.eq_ignore_ascii_case(b"none") {
            self.never = true;
            return Ok(());
        }
        let ms = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse::<f64>().ok());
        let ms = ms.filter(|ms| ms.is_finite() && *ms > 0.0).ok_or_else(|| {
            let is = shortened(&String::from_utf8_lossy(value), 40);
            Problem::bad(format!(
                "X-Request-Deadline-Ms is {is:?}; it must be a number of milliseconds above 0, such as 20, or none"
            ))
        })?;
        self.within(Nanos((ms * 1e6) as u64));
        Ok(())
    }

    /// Applies the header `X-Application`, unless a parameter names another.
    ///
    /// Errors: 400 if it is no text.
    pub(in crate::api) fn application_header(&mut self, value: &[u8]) -> Result<(), Problem> {
        let name = std::str::from_utf8(value).map_err(|_| Problem::bad("X-Application is not UTF-8"))?;
        self.application = Some(name.trim().into());
        Ok(())
    }

    /// Returns the name of the application that the client asked for.
    pub(in crate::api) fn application(&self) -> Option<&str> {
        self.application.as_deref()
    }

    /// Applies a time that counts from the request's head.
    pub(in crate::api) fn within(&mut self, time: Nanos) {
        self.patience = Some(self.patience.map_or(time, |other| other.min(time)));
    }

    /// Applies the parameter of this name, if it is about the deadline, the class or the
    /// application.
    ///
    /// Errors: 400 if its value makes no sense.
    pub(in crate::api) fn parameter(&mut self, name: &str, value: &ParameterValue) -> Result<(), Problem> {
        match name {
            "timeout" => self.timeout = timeout(value)?,
            "priority" => self.class = class(value)?,
            "deadline" => self.never |= never(value)?,
            "application" => self.application = Some(application(value)?),
            "sequence_id" if !is_no_sequence(value) => {
                let message =
                    "parameters.sequence_id is given, but no model here keeps state over a sequence";
                return Err(Problem::bad(message));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the parameters do not contradict each other.
    ///
    /// Errors: 400.
    pub(in crate::api) fn check(&self) -> Result<(), Problem> {
        if self.never && self.timeout.is_some() {
            let message =
                "parameters.timeout is given together with deadline \"none\"; leave one of them out";
            return Err(Problem::bad(message));
        }
        Ok(())
    }

    /// Returns the time until the answer is due, from now. If the client asked for no deadline, its
    /// `grpc-timeout` is ignored: the client cancels the call itself.
    pub(in crate::api) fn due(&self) -> Due {
        if self.never {
            return Due::Never;
        }
        let patience = self.patience.map(|patience| {
            let spent = Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            Nanos(patience.0.saturating_sub(spent.0))
        });
        match (self.timeout, patience) {
            (None, None) => Due::Slo,
            (Some(timeout), Some(patience)) => Due::Within(timeout.min(patience)),
            (one, other) => Due::Within(one.or(other).expect("one is given")),
        }
    }

    /// Returns the class that the client asked for, or the model's own, but none that is higher
    /// than the request may have. A request without a deadline stays in the highest, which the
    /// engine takes for the lowest.
    pub(in crate::api) fn class(&self, model: &ModelInfo) -> Class {
        let class = self.class.unwrap_or(model.class);
        if self.never && class == Class::HIGHEST { class } else { class.max(self.highest) }
    }
}

/// Reads `parameters.timeout`. Zero means no limit, as with Triton's clients.
fn timeout(value: &ParameterValue) -> Result<Option<Nanos>, Problem> {
    let us = value.number().and_then(|us| u64::try_from(us).ok()).ok_or_else(|| {
        Problem::bad("parameters.timeout must be a whole number of microseconds, such as 20000")
    })?;
    Ok((us > 0).then(|| Nanos(us.saturating_mul(1_000))))
}

/// Reads `parameters.priority`: 0 is the model's own, 1 the highest, as in Triton.
fn class(value: &ParameterValue) -> Result<Option<Class>, Problem> {
    match value.number() {
        Some(0) => Ok(None),
        Some(priority @ 1..=4) => Ok(Class::new(priority as u8 - 1)),
        _ => Err(Problem::bad(
            "parameters.priority must be 0, the model's own, or 1, the highest, to 4, the lowest",
        )),
    }
}

fn application(value: &ParameterValue) -> Result<Box<str>, Problem> {
    match value {
        ParameterValue::Text(name) => Ok(name.as_str().into()),
        _ => Err(Problem::bad("parameters.application must be a string, the name of an application")),
    }
}

fn never(value: &ParameterValue) -> Result<bool, Problem> {
    match value {
        ParameterValue::Text(text) if text == "none" => Ok(true),
        ParameterValue::Text(text) if text == "slo" => Ok(false),
        _ => Err(Problem::bad("parameters.deadline must be \"none\", for no deadline at all, or \"slo\"")),
    }
}

fn is_no_sequence(value: &ParameterValue) -> bool {
    matches!(value, ParameterValue::Number(0))
        || matches!(value, ParameterValue::Text(text) if text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::frontend::SlotState;
    use symphony_transport::message::ModelId;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn model(class: Class) -> ModelInfo {
        ModelInfo {
            name: "m".into(),
            version: 1,
            platform: "emulated".into(),
            slo: ms(25),
            max_batch: 8,
            class,
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(0), 0)
        }
    }

    fn number(number: i128) -> ParameterValue {
        ParameterValue::Number(number)
    }

    #[test]
    fn the_tightest_time_counts() {
        let mut deadline = RequestDeadline::new();
        assert_eq!(deadline.due(), Due::Slo);
        deadline.parameter("timeout", &number(5_000)).unwrap();
        deadline.within(ms(60_000));
        assert_eq!(deadline.due(), Due::Within(ms(5)));
        deadline.parameter("timeout", &number(0)).unwrap();
        deadline.deadline_header(b"30000.5").unwrap();
        let Due::Within(time) = deadline.due() else { panic!("{:?}", deadline.due()) };
        assert!(time <= Nanos::from_micros(30_000_500) && time > ms(20_000), "{time:?}");
    }

    #[test]
    fn no_deadline_at_all_can_be_asked_for_and_contradicts_a_time_out() {
        let mut deadline = RequestDeadline::new();
        deadline.deadline_header(b"None").unwrap();
        deadline.within(ms(1));
        deadline.check().unwrap();
        assert_eq!(deadline.due(), Due::Never);
        deadline.parameter("timeout", &number(1)).unwrap();
        assert!(deadline.check().unwrap_err().message.contains("leave one of them out"));
        let mut deadline = RequestDeadline::new();
        deadline.parameter("deadline", &ParameterValue::Text("none".into())).unwrap();
        assert_eq!(deadline.due(), Due::Never);
    }

    #[test]
    fn invalid_values_are_refused_with_what_would_be_valid() {
        let mut deadline = RequestDeadline::new();
        for (name, value) in [
            ("timeout", number(-1)),
            ("timeout", ParameterValue::Other),
            ("timeout", ParameterValue::Text("soon".into())),
            ("priority", number(5)),
            ("priority", number(-1)),
            ("deadline", ParameterValue::Text("never".into())),
            ("sequence_id", number(7)),
            ("application", number(1)),
        ] {
            let message = deadline.parameter(name, &value).unwrap_err().message;
            assert!(message.contains(&format!("parameters.{name}")), "{message}");
        }
        for header in ["", "soon", "-1", "0", "NaN", "inf"] {
            let message = deadline.deadline_header(header.as_bytes()).unwrap_err().message;
            assert!(message.contains("X-Request-Deadline-Ms"), "{message}");
        }
        assert_eq!(deadline.due(), Due::Slo);
    }

    #[test]
    fn a_class_above_the_highest_that_is_permitted_is_lowered_to_it() {
        let model = model(Class::HIGHEST);
        let class = |priority: i128, highest: u8, never: bool| {
            let mut deadline = RequestDeadline { never, ..RequestDeadline::new() };
            deadline.parameter("priority", &number(priority)).unwrap();
            deadline.limit_class(Class::new(highest).unwrap());
            deadline.class(&model).number()
        };
        assert_eq!([class(0, 0, false), class(0, 2, false), class(1, 2, false)], [0, 2, 2]);
        assert_eq!([class(4, 2, false), class(2, 1, false)], [3, 1]);
        // The engine serves a request without a deadline in its lowest class, if it asks for none.
        assert_eq!([class(0, 1, true), class(2, 2, true)], [0, 2]);
    }

    #[test]
    fn a_priority_of_1_is_the_highest_class() {
        for (priority, class) in [(1, 0), (2, 1), (4, 3)] {
            let mut deadline = RequestDeadline::new();
            deadline.parameter("priority", &number(priority)).unwrap();
            assert_eq!(deadline.class, Class::new(class));
        }
    }
}
