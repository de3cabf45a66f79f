"""The tests that show the promises of SECURITY.md about what is not trusted, sentence by sentence."""

from __future__ import annotations

SHOWN_BY = {
    "`stepprof follow` takes its command, its address and its budgets from your configuration file alone, never from the run": [
        "follow/test_follower.py::test_they_come_from_the_file_alone"
    ],
    "A run id with a separator is no part of an address": [
        "follow/test_follower.py::test_a_file_of_the_run_says_no_address"
    ],
    "No link leads out of the run": ["follow/test_upload.py::test_no_link_leads_out"],
    "Files of other users are neither believed nor uploaded": [
        "analysis/test_retention_check.py::test_a_file_in_our_place",
        "analysis/test_retention_check.py::test_a_rank_that_never_finishes_the_step",
    ],
    "Files are data: no pickle is executed": [
        "formats/test_safe_pickle.py::test_code_is_refused_and_not_run"
    ],
    "no page loads anything from a network": [
        "analysis/report/test_page.py::test_the_policy_lists_the_inline_digests_and_allows_no_request",
        "real/viewers/test_viewer_open.py::test_the_viewer_shows_the_slices_and_contacts_no_other_server",
    ],
    "Links are not followed, pipes and devices are not opened.": [
        "host/test_plain_files.py::test_a_link_is_not_followed",
        "host/test_plain_files.py::test_a_pipe_is_not_waited_for",
        "host/test_plain_files.py::test_neither_devices_nor_sockets",
        "host/test_plain_files.py::test_only_this_module_opens_files_of_a_run",
    ],
    "Size, depth and numbers are limited.": [
        "host/test_plain_files.py::test_up_to_a_bound",
        "cli/test_hostile.py::test_deep_lines",
        "cli/test_hostile.py::test_an_impossible_value_is_a_finding",
    ],
    "Damage is reported as a finding with the file's name.": [
        "cli/test_hostile.py::test_every_command_survives_a_hostile_file"
    ],
    "No file in it, or in the current folder, is imported as a module: not by `stepprof`, its workers, or what they start.": [
        "cli/test_module_search.py::test_no_command_imports_a_file_of_the_run",
        "host/test_own_python.py::test_the_current_folder_is_not_searched",
        "real/ray/test_ray_reading.py::test_tasks_import_no_file_of_the_current_folder",
    ],
    "(`python -m stepprof` searches the current folder: Python itself does so.)": [
        "host/test_own_python.py::test_stepprof_in_the_current_folder_is_found"
    ],
    "Control characters do not reach the terminal or the log.": [
        "cli/test_output.py::test_no_command_prints_a_control_character",
        "redaction/test_messages.py::test_there_is_no_other_way_into_the_log",
    ],
    "The HTML page escapes every name.": [
        "analysis/report/test_page.py::test_no_trace_data_is_in_the_markup"
    ],
    "A claim to a run or a request counts only if the job's user owns it.": [
        "run/test_rendezvous.py::test_another_users_claim_is_not_joined",
        "run/test_requests.py::test_links_pipes_and_foreign_files_are_refused",
    ],
    "A run id is a plain name and never a path.": [
        "run/test_run_id.py::test_a_run_id_that_is_not_a_plain_name"
    ],
    "A run folder, `.claims` or `requests` of another user, and a link that is not yours, is not used": [
        "run/test_finished.py::test_a_name_that_is_taken",
        "run/test_rendezvous.py::test_the_folder_of_another_user",
        "recording/control/test_request_inbox.py::test_the_folder_of_another_user",
    ],
    "One deadline for a whole exchange, bounded answers, checked types.": [
        "remote/http/test_client.py::test_an_answer_that_trickles",
        "remote/http/test_client.py::test_an_answer_without_end",
        "fuzz/test_fuzz_servers.py",
    ],
    "Workers that a router lists are followed only on hosts that `attach(…, workers=…)` names.": [
        "remote/http/test_kind.py::test_workers_elsewhere_are_not_followed",
        "remote/http/test_kind.py::test_workers_that_were_named",
    ],
    "Only plain files, without following links.": [
        "remote/core/test_engine_files.py::test_a_link_is_not_followed",
        "remote/core/test_engine_files.py::test_only_plain_files_are_traces",
    ],
    "A server of another user can name neither a folder nor a file of yours.": [
        "remote/core/test_engine_files.py::test_names_a_folder_of_the_drivers_user",
        "remote/core/test_engine_files.py::test_files_of_an_engine_of_another_user",
    ],
    "No message shows the content of a file.": [
        "remote/core/test_engine_files.py::test_no_message_shows_the_content_of_a_file"
    ],
    "`stepprof open` listens on 127.0.0.1 under an address with a random token; every other path is 404.": [
        "analysis/timeline/test_serve.py::test_the_server_listens_on_loopback_only",
        "analysis/timeline/test_serve.py::test_without_the_token_every_path_is_404",
        "analysis/timeline/test_serve.py::test_each_server_has_another_token",
    ],
    "Keys and passwords are masked before text is cut": [
        "redaction/test_messages.py::test_a_secret_at_the_cut"
    ],
    "those that stepprof was given, and what is a secret by its name, place or form.": [
        "redaction/test_messages.py::test_every_form_of_a_secret",
        "redaction/test_secret_places.py",
        "host/test_command_line.py::test_a_secret_is_not_shown",
        "recording/test_session.py::test_secrets_of_the_command_are_masked",
    ],
    "A secret with no such sign is not recognised: put secrets into the environment.": [],
    "Control characters are shown as escapes.": [
        "redaction/test_messages.py::test_quoted_text_is_one_printable_line"
    ],
}
"""The sentences of the table, or their parts, and the tests that show each."""
