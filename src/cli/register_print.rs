// SPDX-License-Identifier: Apache-2.0
//! Registration as text: manifests for `kubectl`, and in comments the commands for what a manifest cannot say.

use std::{io::Write, time::Duration};

use serde_json::Value;

use super::{
    error::CliError,
    output::{self, Form},
};
use crate::registration::unmanaged::{self, Access, DownstreamSettings, Identity, Plan};

/// What is printed for the management cluster.
#[derive(Clone, Copy)]
pub struct Printed<'a> {
    /// Names.
    pub plan: &'a Plan,
    /// With it the token is asked for by command, and there is no Secret.
    pub ttl: Option<Duration>,
    /// Name of the token's Secret.
    pub token_secret: &'a str,
}

/// The management cluster's side.
pub fn upstream(out: &mut dyn Write, printed: &Printed<'_>) -> Result<(), CliError> {
    let Printed { plan, ttl, token_secret } = *printed;
    let mut objects = unmanaged::upstream_objects(plan);
    if plan.identity == Identity::Own && ttl.is_none() {
        objects.push(unmanaged::token_secret(plan, token_secret));
    }
    let (name, namespace) = (&plan.name, &plan.namespace);
    let patch = unmanaged::status_patch(plan);
    let mut text = format!(
        "# Cluster {namespace}/{name}, the management cluster's side. `kubectl apply` leaves the status out; it takes:\n\
         #   kubectl patch clusters.fleet.cattle.io {name} --namespace {namespace} --subresource=status \
         --type=merge --patch '{patch}'\n"
    );
    if plan.identity == Identity::Own {
        let (account_namespace, account) = plan.account();
        let command = match ttl {
            None => format!(
                "kubectl get secret {token_secret} --namespace {account_namespace} \
                 --output jsonpath='{{.data.token}}' | base64 -d"
            ),
            Some(ttl) => format!(
                "kubectl create token {account} --namespace {account_namespace} --duration {}s",
                ttl.as_secs()
            ),
        };
        text.push_str(&format!(
            "# The token, for `flotilla register {name} --print downstream --token-file token`:\n\
             #   {command} > token\n"
        ));
    }
    output::write(out, &text)?;
    print(out, &objects)
}

/// The agent's side. It has a token in it, but for the account of a Pod.
pub fn downstream(
    out: &mut dyn Write,
    plan: &Plan,
    access: &Access<'_>,
    settings: &DownstreamSettings,
) -> Result<(), CliError> {
    head(out, plan, access)?;
    print(out, &unmanaged::downstream_objects(plan, access, settings))
}

/// Of the agent's side what changes when its token is exchanged.
pub fn secret(out: &mut dyn Write, plan: &Plan, access: &Access<'_>) -> Result<(), CliError> {
    head(out, plan, access)?;
    print(out, &[unmanaged::downstream_secret(plan, access)])
}

fn head(out: &mut dyn Write, plan: &Plan, access: &Access<'_>) -> Result<(), CliError> {
    let secret = match access {
        Access::Pod { .. } => "",
        Access::Token { .. } => " It holds a token: keep it as you keep passwords.",
    };
    output::write(out, &format!("# Cluster {}, the agent's side.{secret}\n", plan.cluster()))
}

/// What is to be deleted on the management cluster.
pub fn revocation(out: &mut dyn Write, plan: &Plan) -> Result<(), CliError> {
    let text = format!(
        "# The access of cluster {}, for `kubectl delete --ignore-not-found -f -`. All tokens end with the account.\n",
        plan.cluster()
    );
    output::write(out, &text)?;
    print(out, &unmanaged::rights(plan))
}

fn print(out: &mut dyn Write, objects: &[Value]) -> Result<(), CliError> {
    output::objects(out, objects, Form::Yaml, false)
}
