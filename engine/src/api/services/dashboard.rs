//! The dashboard: one page, its script and its style, embedded in the binary, and the data that it
//! requests. Its Content-Security-Policy forbids content from any other server.

use crate::telemetry::{Query, Telemetry};
use hyper::header::HeaderValue;

/// The Content-Security-Policy, which allows the page's own parts from this server.
pub(in crate::api) const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// A part of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum DashboardPart {
    /// `/dashboard`
    Page,
    /// `/dashboard/dashboard.js`
    Script,
    /// `/dashboard/dashboard.css`
    Style,
    /// `/dashboard/data`
    Data,
}

impl DashboardPart {
    /// Returns the part at a path below `/dashboard`.
    pub(in crate::api) fn of(rest: &[&str]) -> Option<DashboardPart> {
        Some(match rest {
            [] => DashboardPart::Page,
            ["dashboard.js"] => DashboardPart::Script,
            ["dashboard.css"] => DashboardPart::Style,
            ["data"] => DashboardPart::Data,
            _ => return None,
        })
    }

    /// Returns its content type and its body. `query` is the part of the URL after `?`.
    ///
    /// Errors: the fault of the query.
    pub(in crate::api) fn body(
        self,
        telemetry: &Telemetry,
        query: &str,
    ) -> Result<(HeaderValue, String), String> {
        let (content_type, body) = match self {
            DashboardPart::Page => {
                ("text/html; charset=utf-8", include_str!("dashboard/dashboard.html").to_owned())
            }
            DashboardPart::Script => {
                ("text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js").to_owned())
            }
            DashboardPart::Style => {
                ("text/css; charset=utf-8", include_str!("dashboard/dashboard.css").to_owned())
            }
            DashboardPart::Data => ("application/json", telemetry.view(&Query::parse(query)?)),
        };
        Ok((HeaderValue::from_static(content_type), body))
    }
}
