// SPDX-License-Identifier: Apache-2.0
//! As whom a bundle is deployed: the account that it names, `fleet-default` where that exists, or the agent itself.

use std::{collections::HashMap, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use super::{
    Downstream,
    server::{RequestError, push_segment},
};

/// Impersonated where a bundle names no account and this one exists. Fleet's name.
pub const DEFAULT: &str = "fleet-default";
/// How long it is remembered whether an account exists: many bundles are deployed in one moment.
const FRESH: Duration = Duration::from_secs(2);
/// Accounts remembered; more than that and all are looked up anew.
const LIMIT: usize = 500;

/// Why an account cannot be impersonated.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// It does not exist. Fleet's text.
    #[error("looking up service account {namespace}/{name}: ServiceAccount {name:?} not found")]
    Missing {
        /// The agent's namespace.
        namespace: String,
        /// The account.
        name: String,
    },
    /// It could not be looked up.
    #[error("looking up service account {namespace}/{name}")]
    Look {
        /// The agent's namespace.
        namespace: String,
        /// The account.
        name: String,
        /// Why.
        #[source]
        source: RequestError,
    },
}

/// The accounts of the agent's namespace.
#[derive(Debug)]
pub struct Accounts {
    namespace: String,
    known: Mutex<HashMap<String, (Instant, bool)>>,
}

impl Accounts {
    /// Accounts live in the agent's namespace.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), known: Mutex::default() }
    }

    /// `downstream` as the identity of a deployment that names `account`, or none.
    ///
    /// # Errors
    /// An account that is named must exist.
    pub async fn acting(&self, downstream: &Downstream, account: &str) -> Result<Downstream, AccountError> {
        let name = if account.is_empty() { DEFAULT } else { account };
        if !self.exists(downstream, name).await? {
            if account.is_empty() {
                return Ok(downstream.clone());
            }
            return Err(self.missing(name));
        }
        let user = format!("system:serviceaccount:{}:{name}", self.namespace);
        // No account can have a name that fits no header.
        downstream.acting_as(&user).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> AccountError {
        AccountError::Missing { namespace: self.namespace.clone(), name: name.to_owned() }
    }

    async fn exists(&self, downstream: &Downstream, name: &str) -> Result<bool, AccountError> {
        // Held over the request, so that those that ask together ask once.
        let mut known = self.known.lock().await;
        if let Some((since, exists)) = known.get(name)
            && since.elapsed() < FRESH
        {
            return Ok(*exists);
        }
        let mut path = String::from("/api/v1/namespaces/");
        push_segment(&mut path, &self.namespace);
        path.push_str("/serviceaccounts/");
        push_segment(&mut path, name);
        let asked = Instant::now();
        let found = downstream.agent.metadata(&path).await.map_err(|source| AccountError::Look {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            source,
        })?;
        if known.len() >= LIMIT {
            known.clear();
        }
        known.insert(name.to_owned(), (asked, found.is_some()));
        Ok(found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        downstream::{server::Server, testing::context},
        telemetry::scripted,
    };

    const ACCOUNTS: &str = "GET /api/v1/namespaces/agent/serviceaccounts/";

    #[tokio::test(start_paused = true)]
    async fn requests_are_made_as_the_account_and_what_the_agent_must_see_as_the_agent() {
        let (client, mut server) = scripted::client();
        let downstream = context(Server::new(client, Duration::from_secs(5)));
        let accounts = Accounts::new("agent");
        let asked = tokio::spawn(async move {
            let acting = accounts.acting(&downstream, "team").await.unwrap();
            let _ = acting.server.metadata("/api/v1/namespaces/ns").await;
            let _ = acting.store.history("ns", "app").await;
            let _ = acting.agent.metadata("/api/v1/namespaces/ns").await;
            // Remembered.
            let acting = accounts.acting(&downstream, "team").await.unwrap();
            let _ = acting.server.metadata("/api/v1/namespaces/ns").await;
            tokio::time::advance(FRESH).await;
            accounts.acting(&downstream, "team").await.map(|_| ())
        });
        let call = server.next().await;
        assert_eq!((call.line(), call.user.as_str()), (format!("{ACCOUNTS}team"), ""));
        call.answer(200, &json!({"metadata": {"name": "team"}}));
        let account = "system:serviceaccount:agent:team";
        for user in [account, "", "", account] {
            let call = server.next().await;
            assert_eq!(call.user, user, "{}", call.line());
            call.answer(200, &json!({"metadata": {"name": "ns"}, "items": []}));
        }
        server.next().await.refuse(404, "NotFound");
        assert_eq!(
            asked.await.unwrap().unwrap_err().to_string(),
            "looking up service account agent/team: ServiceAccount \"team\" not found"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_without_an_account_has_the_default_one_where_that_exists() {
        for (exists, user) in [(true, "system:serviceaccount:agent:fleet-default"), (false, "")] {
            let (client, mut server) = scripted::client();
            let downstream = context(Server::new(client, Duration::from_secs(5)));
            let asked = tokio::spawn(async move {
                let acting = Accounts::new("agent").acting(&downstream, "").await.unwrap();
                let _ = acting.server.metadata("/api/v1/namespaces/ns").await;
            });
            let call = server.next().await;
            assert_eq!(call.line(), format!("{ACCOUNTS}fleet-default"));
            if exists {
                call.answer(200, &json!({"metadata": {}}))
            } else {
                call.refuse(404, "NotFound")
            }
            let call = server.next().await;
            assert_eq!(call.user, user);
            call.answer(200, &json!({"metadata": {}}));
            asked.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_that_cannot_be_looked_up_is_no_reason_to_deploy_as_the_agent() {
        let (client, mut server) = scripted::client();
        let downstream = context(Server::new(client, Duration::from_secs(5)));
        let asked =
            tokio::spawn(async move { Accounts::new("agent").acting(&downstream, "").await.map(|_| ()) });
        server.next().await.refuse(500, "InternalError");
        assert!(matches!(asked.await.unwrap(), Err(AccountError::Look { .. })));
    }
}
