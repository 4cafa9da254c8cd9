// SPDX-License-Identifier: Apache-2.0
//! An error and its causes, as one line for people.

use std::error::Error;

/// The error with its causes, each once: what an earlier one already says is left out.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let of_kube = error.downcast_ref::<kube::Error>();
        let of_kube = of_kube.or_else(|| error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref));
        let answer = match of_kube {
            // kube tells it three times, the last time as a debug print of everything.
            Some(kube::Error::Api(status)) if !status.message.is_empty() => Some(&status.message),
            _ => None,
        };
        let own = answer.map_or_else(|| error.to_string(), Clone::clone);
        if !text.contains(&own) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&own);
        }
        next = if answer.is_some() { None } else { error.source() };
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: inner")]
        struct Outer(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner(#[source] io::Error);
        let error = Outer(Inner(io::Error::other("deep")));
        assert_eq!(chain(&error), "outer: inner: deep");
    }

    #[test]
    fn an_answer_of_the_api_is_told_once_and_in_its_own_words() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read content s-1")]
        struct Read(#[source] Box<kube::Error>);
        let message = "contents \"s-1\" not found";
        let status = kube::core::Status { code: 404, message: message.into(), ..Default::default() };
        let error = Read(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), format!("cannot read content s-1: {message}"));
    }
}
