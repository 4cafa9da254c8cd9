// SPDX-License-Identifier: Apache-2.0
//! The searches: the protocol as it is breaks nothing, and each planted bug is found.

use super::{scenarios::*, world::Bug};

#[test]
fn two_replicas_race_beside_an_unrelated_writer() {
    races().holds();
}

#[test]
fn a_holder_that_crashes_at_any_moment_is_replaced() {
    crash().holds();
}

#[test]
fn a_holder_that_freezes_and_wakes_at_any_moment_overwrites_nothing() {
    freeze().holds();
}

#[test]
fn a_holder_frozen_through_two_changes_of_the_spec_overwrites_nothing() {
    frozen_through_two_changes().holds();
}

#[test]
fn lost_answers_lead_neither_to_two_claims_nor_to_a_lost_one() {
    lost_answers().holds();
}

#[test]
fn late_and_doubled_answers_and_a_lagging_watch_are_harmless() {
    late_answers().holds();
}

#[test]
fn a_removal_and_a_re_creation_leave_what_the_new_uid_wants() {
    recreation().holds();
}

#[test]
fn a_holder_frozen_during_the_removal_leaves_nothing() {
    frozen_removal().holds();
}

#[test]
fn a_holder_or_remover_that_crashes_during_the_removal_leaves_nothing() {
    crashed_removal().holds();
}

#[test]
fn the_reaper_ends_a_claim_that_nobody_is_left_to_take_over() {
    reaped().holds();
}

#[test]
fn a_reaper_and_a_replica_that_takes_over_end_a_claim_once() {
    reaped_or_taken_over().holds();
}

#[test]
fn two_reapers_end_a_claim_once() {
    reaped_twice().holds();
}

#[test]
fn a_reaper_that_does_not_name_the_version_it_saw_is_a_hole() {
    reaped_or_taken_over().finds(Bug::ReaperBlind);
}

#[test]
fn a_wait_is_entered_whatever_happens_to_its_write() {
    wait().holds();
}

#[test]
fn a_holder_that_crashes_before_in_or_after_its_wait_is_replaced() {
    wait_and_crash().holds();
}

#[test]
fn what_is_paused_is_never_claimed_and_goes_on_afterwards() {
    pause().holds();
}

#[test]
fn a_unit_that_kills_its_holders_is_quarantined() {
    poison().holds();
}

#[test]
fn three_replicas_race() {
    three().holds();
}

#[test]
fn an_object_that_keeps_an_old_stamp_is_a_hole() {
    frozen_through_two_changes().finds(Bug::SkipEqual);
}

#[test]
fn a_fresh_version_without_the_stamp_is_a_hole() {
    freeze().finds(Bug::IgnoreStamp);
}

#[test]
fn an_apply_without_the_uid_is_a_hole() {
    frozen_removal().finds(Bug::ApplyWithoutUid);
}

#[test]
fn a_create_without_a_confirmed_claim_is_a_hole() {
    frozen_removal().finds(Bug::CreateUnconfirmed);
}

#[test]
fn strays_that_nobody_looks_for_stay() {
    crashed_removal().finds(Bug::NoSweep);
}

#[test]
fn a_claim_adopted_after_a_restart_is_a_hole() {
    crash().finds(Bug::AdoptAfterRestart);
}

#[test]
fn a_conflict_taken_for_a_loss_is_a_hole() {
    races().finds(Bug::ConflictIsLoss);
}

#[test]
fn wall_clocks_are_a_hole() {
    freeze().finds(Bug::WallClock);
}

#[test]
fn what_a_lost_holder_left_is_looked_for_though_the_spec_moves_during_the_takeover() {
    taken_over_and_moved().holds();
}

#[test]
fn a_takeover_that_its_replacement_forgets_is_a_hole() {
    taken_over_and_moved().finds(Bug::ForgetTakeover);
}

#[test]
fn what_a_lost_holder_left_is_looked_for_though_it_cannot_be_deployed_until_a_change() {
    taken_over_and_rejected().holds();
}

#[test]
fn a_takeover_that_a_rejection_forgets_is_a_hole() {
    taken_over_and_rejected().finds(Bug::ForgetRejected);
}

#[test]
fn an_old_status_put_over_a_claim_is_worked_off_like_a_lost_holder() {
    wiped().holds();
}

#[test]
fn a_record_found_pending_that_says_nothing_is_a_hole() {
    wiped().finds(Bug::ForgetPending);
}

#[test]
fn what_failed_is_tried_again() {
    failure().holds();
}

#[test]
fn a_rest_without_an_end_is_noticed() {
    failure().finds(Bug::EndlessRest);
}

#[test]
fn a_dead_holder_whom_nobody_replaces_is_noticed() {
    crash().finds(Bug::NeverSteal);
}

#[test]
fn stealing_a_pending_record_is_a_hole() {
    freeze().finds(Bug::StealPending);
}
