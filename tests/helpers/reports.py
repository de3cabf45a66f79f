"""Build reports as the analysis does, for the tests of their display: a step of GRPO on any number
of ranks, with two engines. The same seed gives the same report.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from stepprof.analysis.report import schema as s

ROLES = ("rollout", "reward", "ref", "actor")


def make_report(
    ranks=64, engines=2, *, seed=7, micro_batches=8, straggler=None, step=12, run_id="grpo-7b-math"
):
    """Return one step of about a minute: a rollout with a long tail, reward, reference, and an
    update with one slow rank.
    """
    rng = random.Random(seed)
    straggler = ranks // 3 if straggler is None else straggler
    per_host = 8
    t_gen, t_reward, t_ref, t_actor = 27.4, 3.1, 5.2, 19.6
    generate = 0.35
    reward = generate + t_gen
    ref = reward + t_reward
    actor = ref + t_ref + 0.3
    end = actor + t_actor + 0.9

    rollouts = [_rollout(rng, number, generate, t_gen - 0.8 * number) for number in range(engines)]
    gantt = [_driver_row(generate, t_gen, reward, t_reward, ref, t_ref, actor, t_actor, end)]
    gantt += [
        _engine_row(engine, worker, rollouts[engine]) for engine in range(engines) for worker in range(2)
    ]
    done = {}
    idle, overlap, memory, overhead, ends = [], [], [], [], []
    for rank in range(ranks):
        label, host = f"actor rank {rank}", f"gpu-node-{rank // per_host:02d}"
        slow = 1.8 if rank == straggler else rng.random() * 0.35
        row, finished = _rank_row(rng, label, host, ref, t_ref, actor, t_actor - 2.2 + slow, micro_batches)
        gantt.append(row)
        done[label] = finished
        ends.append(finished)
        busy = t_ref * 0.9 + (t_actor - 2.2) * (0.80 + rng.random() * 0.04)
        collective = 1.2 + (0 if rank == straggler else 1.8 - slow) + rng.random() * 0.2
        profiler = 0.25 + rng.random() * 0.1
        host_bound = 1.1 + rng.random() * 0.5
        waits = {
            "rollout": t_gen + t_reward * 0.2,
            "collective": collective,
            "host": host_bound,
            "profiler": profiler,
        }
        waits["unknown"] = max(0.0, end - busy - sum(waits.values()))
        idle.append(s.Idle(label, end, busy, waits))
        communication = 5.1 + rng.random() + collective
        overlapped = 3.4 + rng.random() * 0.8
        overlap.append(
            s.Overlap(
                label,
                "gpu",
                busy,
                communication,
                overlapped,
                communication - overlapped,
                0.78 + rng.random() * 0.08,
            )
        )
        memory.append(
            s.Memory(
                label,
                f"cuda:{rank % per_host}",
                int((61 + rng.random() * 6) * 2**30),
                actor + rng.random() * t_actor,
            )
        )
        overhead.append(
            s.Overhead(
                label,
                arm=0.12,
                start=0.03,
                wait=0.0,
                stall=0.21 + rng.random() * 0.1,
                export=2.9 + rng.random(),
            )
        )
    overhead += [
        s.Overhead(f"rollout/{n}", start=0.11 + 0.02 * n, stop=3.4 + 0.3 * n) for n in range(engines)
    ]
    last = max(done.values())
    waited = [
        s.ProcessTime(label, last - finished, 1, finished)
        for label, finished in done.items()
        if finished < last
    ]
    median = sorted(ends)[len(ends) // 2]
    spread = last - min(ends)
    skew = [
        s.PhaseSkew("actor", None, f"actor rank {straggler}", spread, last - median, waited, True),
        s.PhaseSkew(
            "actor", "forward_backward", f"actor rank {straggler}", spread * 0.8, (last - median) * 0.8,
            [s.ProcessTime(w.label, w.seconds * 0.8, 1, None) for w in waited], True,
        ),
        s.PhaseSkew(
            "ref", "compute_log_prob", f"actor rank {(straggler + 5) % ranks}", 0.42, 0.21,
            [s.ProcessTime(f"actor rank {r}", 0.05 + rng.random() * 0.37, 1, None) for r in range(ranks) if r != (straggler + 5) % ranks], True,
        ),
        s.PhaseSkew(
            "actor", "optimizer_step", f"actor rank {(straggler + 9) % ranks}", 0.0006, 0.0002,
            [s.ProcessTime(f"actor rank {r}", rng.random() * 0.0006, 1, None) for r in range(ranks) if r != (straggler + 9) % ranks], False,
        ),
    ]  # fmt: skip
    worst = rollouts[0]
    return _parts(s.Report(
        run_id=run_id,
        step=step,
        start_unix_ns=1_763_560_812_345_678_901,
        seconds=end,
        clock="Files of 8 hosts: each trace by its own clock (baseTimeNanoseconds), hosts compared with gpu-node-00 by round trips at the step's edges.",
        clock_error_ns=184_000,
        stepprof="0.4.0",
        version=11,
        job=_job(ranks),
        findings=[
            s.Finding(f"the step took {end:.1f} s: rollout 48%, actor 34%, ref 9%, reward 5%", "step", end),
            s.Finding(
                f"actor rank {straggler} spent 1.8 s longer than the others in `forward_backward` (in `update_actor`, role actor), collectives not counted", "straggler", 1.8,
                process=f"actor rank {straggler}", role="actor", region="forward_backward", start=actor + 2.0, end=actor + 9.0, why="its batch has 1.4 times the tokens of the median rank; also in 3 of 4 steps around it",
                advice="balance the tokens over the ranks before the update", saves=1.8, assumption="the rank takes as long as the slowest of the others",
            ),
            s.Finding(f"generation ran below half of its peak batch for {worst.below_half:.0%} of the rollout , without a break for the last {worst.tail:.1f} s", "tail", worst.tail, start=ref - t_reward - worst.tail, end=reward, why="12 samples", advice="cap the length, or start the reward with the samples that are done", saves=worst.tail / 2, assumption="the batch stays full"),
            s.Finding(f"{ranks} of {ranks} processes: no work was recorded for {t_gen / end:.0%} of the step on average while the rollout ran", "idle", t_gen),
            s.Finding(f"actor rank {straggler} was the last to finish actor: {last - median:.1f} s behind the median of the others", "straggler", last - median),
            s.Finding("54% of the communication is not overlapped by computation: 4.1 s on average", "overlap", 4.1),
            s.Finding("recording delayed actor rank 3 by 460 ms", "overhead", 0.46),
            s.Finding("actor rank 17 reached 66.8 GiB (GPU 1, allocated)", "memory", None),
        ],
        sources=_sources(ranks, engines, per_host),
        gantt=gantt,
        roles=[
            _time_of("rollout", None, t_gen, end, [(f"rollout/{n} worker {w}", t_gen - 0.8 * n) for n in range(engines) for w in range(2)]),
            _time_of("actor", None, t_actor, end, [(label, finished - actor) for label, finished in done.items()]),
            _time_of("ref", None, t_ref, end, [(label, t_ref * (0.9 + rng.random() * 0.1)) for label in done]),
            _time_of("reward", None, t_reward, end, [("driver", t_reward)]),
        ],
        regions=[
            _time_of("rollout", "generate_sequences", t_gen - 0.9, end, [("driver", t_gen - 0.9)]),
            _time_of("actor", "update_actor", t_actor - 0.4, end, [(label, finished - actor - 0.2) for label, finished in done.items()]),
            _time_of("actor", "forward_backward", t_actor - 2.6, end, [(label, (finished - actor) * 0.86) for label, finished in done.items()]),
            _time_of("ref", "compute_log_prob", t_ref - 0.2, end, [(label, t_ref * (0.86 + rng.random() * 0.1)) for label in done]),
            _time_of("reward", "math_verify", t_reward - 0.3, end, [("driver", t_reward - 0.3)]),
            _time_of("actor", "optimizer_step", 1.4, end, [(label, 1.3 + rng.random() * 0.1) for label in done]),
            _time_of("rollout", "sync_weights", 0.9, end, [("driver", 0.9)]),
        ],
        tree=_tree(end, [(label, finished - actor) for label, finished in done.items()]),
        path=_path(straggler, generate, reward, ref, actor, end, micro_batches),
        neighbourhood=_neighbourhood(step, end),
        slack=[s.Slack("actor rank 2", "actor", 1.25), s.Slack(f"actor rank {straggler}", "actor", 0.0)],
        skew=skew,
        idle=idle,
        rollout=rollouts,
        overlap=overlap,
        ops=_ops(rng, ranks),
        kernels=_kernels(rng, ranks),
        memory=memory,
        overhead=overhead,
        stops=[
            s.StopCost(f"rollout/{n}", 32, 1.5 + n / 10, "write", [(128, 6.0), (512, 24.0)])
            for n in range(engines)
        ],
        problems=[
            s.Problem("actor rank 41", "the trace ends in the middle of an event: the 211,904 events before it are used"),
            s.Problem(None, "rollout/1 worker 1: its capture was lost (the engine restarted while it recorded)"),
        ],
        unmatched=[
            s.UnmatchedTime("ref", "sync", [s.ProcessTime(label, 0.3, 4) for label in list(done)[:8]], 8, 64),
            s.UnmatchedTime("actor", None, [s.ProcessTime(label, 0.1, 2) for label in list(done)[:2]], None, None),
        ],
        shortfalls=[
            s.Shortfall(f"actor rank {ranks - 1}", "complete", "max_seconds", None, 10.0, t_actor),
            s.Shortfall("rollout/1", "lost", None, "the engine restarted while it recorded", None, None),
        ],
        islands=[s.Island([f"gpu-node-{host:02d}" for host in range(8 + engines)], 1_763_560_812_345_678_901, end)],
    ))  # fmt: skip


def _job(ranks):
    command = [
        "python",
        "-m",
        "verl.trainer.main_ppo",
        "data.train_files=/mnt/shared/datasets/reasoning/math/train-00000-of-00064.parquet",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "trainer.n_gpus_per_node=8",
    ]
    versions = {
        "python": "3.12.3",
        "stepprof": "0.4.0",
        "torch": "2.9.1+cu128",
        "ray": "2.52.1",
        "vllm": "0.12.0",
    }
    return s.Job(command, ranks, "Qwen/Qwen3-8B", versions, "Linux 6.8.0 x86_64", ["verl"])  # fmt: skip


def _parts(report):
    """Return the report with its roles as parts, and the rest."""
    spent = [sum(each.seconds for each in report.path if each.part == part) for part in range(5)]
    parts = [
        s.Part(
            time.role,
            time.role,
            None,
            spent[at],
            spent[at] / report.seconds,
            time.seconds,
            time.share,
            [(each.start, each.seconds) for each in report.path if each.part == at],
        )
        for at, time in enumerate(report.roles)
    ]
    rest = s.Part("in no window", None, None, spent[4], spent[4] / report.seconds, None, None)
    return replace(report, parts=[*parts, rest])


def _path(straggler, generate, reward, ref, actor, end, micro_batches):
    slow = f"actor rank {straggler}"
    path = [
        s.PathSegment("driver", 0.0, generate, "work", "rollout", ["sync_weights"], 0),
        s.PathSegment("rollout/0 worker 0", generate, reward - generate, "engine", "rollout", part=0),
        s.PathSegment("driver", reward, ref - reward, "work", "reward", ["math_verify"], 3),
        s.PathSegment("actor rank 5", ref, actor - ref - 0.3, "work", "ref", ["compute_log_prob"], 2),
        s.PathSegment("driver", actor - 0.3, 0.3, "handover", "ref", part=2),
    ]
    each = (end - 0.9 - actor) / micro_batches
    for number in range(micro_batches):
        at = actor + number * each
        path.append(
            s.PathSegment(slow, at, each * 0.9, "work", "actor", ["update_actor", "forward_backward"], 1)
        )
        path.append(
            s.PathSegment(slow, at + each * 0.9, each * 0.1, "communication", "actor", ["update_actor"], 1)
        )
    return [*path, s.PathSegment("driver", end - 0.9, 0.9, "outside", part=4)]


def _neighbourhood(step, end):
    rng = random.Random(step)
    steps = []
    for number in range(step or 0, (step or 0) + 40):
        roles = {"rollout": 24 + 4 * rng.random(), "reward": 3.0, "ref": 5.0, "actor": 18 + 2 * rng.random()}
        if number % 5 == 4:
            del roles["rollout"]
        steps.append(s.StepTime(number, sum(roles.values()), number % 20 == (step or 0) % 20, roles))
    this, others = steps[0], [each for each in steps if not each.recorded and "rollout" in each.roles]
    parts = [s.Usual(None, end, 50.0, 48.0, 54.0, len(others), False), s.Usual("rollout", this.roles["rollout"], 26.0, 24.0, 28.0, len(others), True)]  # fmt: skip
    text = f"step {step} took {end:.1f} s in driver: longer than usual; the {len(others)} other steps with the same roles that were not recorded took 50.0 s (48.0 s to 54.0 s)"
    return s.Neighbourhood("driver", steps, [each.step for each in others], parts, text)


def _driver_row(generate, t_gen, reward, t_reward, ref, t_ref, actor, t_actor, end):
    bars = [
        s.Bar(0.05, generate - 0.05, "sync_weights", "rollout", 1),
        s.Bar(generate, t_gen, "rollout", "rollout", 0),
        s.Bar(generate + 0.05, t_gen - 0.1, "generate_sequences", "rollout", 1),
        s.Bar(reward, t_reward, "reward", "reward", 0),
        s.Bar(reward + 0.1, t_reward - 0.3, "math_verify", "reward", 1),
        s.Bar(ref, t_ref, "ref", "ref", 0),
        s.Bar(ref + 0.05, t_ref - 0.1, "compute_log_prob", "ref", 1),
        s.Bar(actor, t_actor, "actor", "actor", 0),
        s.Bar(actor + 0.1, t_actor - 0.2, "update_actor", "actor", 1),
        s.Bar(actor + t_actor, end - actor - t_actor - 0.05, "sync_weights", "rollout", 1),
    ]
    return s.GanttRow("driver", "gpu-node-00", "spans", bars)


def _engine_row(engine, worker, rollout):
    start = rollout.curve[0][0]
    seconds = rollout.seconds
    bars = [s.Bar(start, seconds, "rollout", "rollout", 0), s.Bar(start + 0.02, 1.3, "prefill", "rollout", 1)]
    bars.append(s.Bar(start + 1.35, seconds - 1.4, "decode", "rollout", 1))
    busy = [(start + i * seconds / 300, seconds / 300 * (0.92 if i < 180 else 0.45)) for i in range(300)]
    return s.GanttRow(f"rollout/{engine} worker {worker}", f"gpu-node-{8 + engine:02d}", "engine", bars, busy)


def _rank_row(rng, label, host, ref, t_ref, actor, t_actor, micro_batches):
    bars = [s.Bar(ref, t_ref, "ref", "ref", 0)]
    bars.append(
        s.Bar(
            ref + 0.03 + rng.random() * 0.05,
            t_ref * (0.9 + rng.random() * 0.08),
            "compute_log_prob",
            "ref",
            1,
        )
    )
    bars.append(s.Bar(actor, t_actor + 0.1, "actor", "actor", 0))
    bars.append(s.Bar(actor + 0.02, t_actor, "update_actor", "actor", 1))
    each = (t_actor - 1.5) / micro_batches
    busy = [(ref + 0.1 + i * t_ref / 60, t_ref / 60 * (0.7 + rng.random() * 0.3)) for i in range(54)]
    at = actor + 0.05
    for _ in range(micro_batches):
        took = each * (0.94 + rng.random() * 0.06)
        bars.append(s.Bar(at, took * 0.97, "forward_backward", "actor", 2))
        bars.append(s.Bar(at + 0.01, took * 0.3, "forward", "actor", 3))
        bars.append(s.Bar(at + 0.02 + took * 0.3, took * 0.6, "backward", "actor", 3))
        busy += [(at + i * took / 20, took / 20 * (0.6 + rng.random() * 0.4)) for i in range(19)]
        at += took
    bars.append(s.Bar(at, actor + t_actor - at, "optimizer_step", "actor", 2))
    busy.append((at + 0.1, (actor + t_actor - at) * 0.8))
    return s.GanttRow(label, host, "rank", bars, busy), actor + t_actor


def _rollout(rng, number, start, seconds):
    peak = 256
    curve = []
    for i in range(240):
        x = i / 239
        if x < 0.06:
            batch = peak * x / 0.06
        elif x < 0.5 - 0.06 * number:
            batch = peak - rng.random() * 9
        else:
            y = (x - 0.5 + 0.06 * number) / (0.5 + 0.06 * number)
            batch = peak * (1 - y) ** 2.2 + rng.random() * 5
        curve.append((start + x * seconds, float(max(1, round(batch)))))
    below = [b < peak / 2 for _, b in curve]
    tail_from = next(at for at, b in curve if at > start + seconds / 2 and b < peak / 2)
    samples = []
    for i in range(12):
        total = seconds - i * 0.55
        tool = total * (0.05 + rng.random() * 0.3)
        reward = 0.2 + rng.random() * 0.6
        samples.append(
            s.Sample(f"prompt-{rng.randrange(4096):04d}/{rng.randrange(8)}", start, start + total, {"generate": total - tool - reward, "tool_call": tool, "reward": reward}, 1, 900 - 40 * i, 0.2 + 0.03 * i, 0.021)
        )  # fmt: skip
    return s.Rollout(
        f"rollout/{number}", 4120 - 300 * number, seconds, float(peak), sum(b for _, b in curve) / len(curve),
        sum(below) / len(below), start + seconds - tail_from, curve, samples,
        s.SampleSeconds(256, 0.5 * seconds, 0.45 * seconds, 0.9 * seconds, seconds), s.SampleSeconds(256, 0.3, 0.28, 0.9, 1.4),
        s.SampleSeconds(250, 0.021, 0.02, 0.024, 0.041),
    )  # fmt: skip


def _time_of(role, region, seconds, end, per_process):
    return s.TimeOf(
        role,
        region,
        seconds,
        seconds / end,
        [s.ProcessTime(label, took, 8 if region else 1, None) for label, took in per_process],
    )


def _tree(end, actors):
    """Return the tree of the actors: the step, its role, two regions, and the calls in them."""

    def row(parent, kind, name, part, own, calls=1):
        times = sorted(
            (s.RegionTime(label, part * took, own * took, calls) for label, took in actors),
            key=lambda time: time.seconds,
        )
        middle = times[len(times) // 2]
        share = (middle.self_seconds if kind in ("op", "kernel") else middle.seconds) / end
        each = [] if kind in ("op", "kernel") else times
        return s.RegionRow(
            parent,
            kind,
            name,
            calls * len(times),
            middle.seconds,
            middle.self_seconds,
            share,
            times[0].seconds,
            times[-1].seconds,
            times[-1].label,
            len(times),
            each,
        )

    return [
        row(None, "step", "step", 1.02, 0.02),
        row(0, "role", "actor", 1.0, 0.05),
        row(1, "region", "update_actor", 0.95, 0.09),
        row(2, "region", "forward_backward", 0.86, 0.86, 8),
        row(3, "op", "aten::mm", 0.3, 0.3, 4096),
        row(3, "op", "others", 0.2, 0.2, 20_000),
        row(3, "kernel", "sm90_xmma_gemm_bf16bf16_bf16f32", 0.6, 0.6, 4096),
    ]  # fmt: skip


def _ops(rng, ranks):
    names = [
        ("aten::mm", 0.31), ("aten::_flash_attention_forward", 0.12), ("aten::_flash_attention_backward", 0.11), ("aten::copy_", 0.07), ("c10d::_reduce_scatter_base_", 0.06),
        ("c10d::_allgather_base_", 0.06), ("aten::mul", 0.05), ("aten::_fused_adamw_", 0.04), ("aten::native_layer_norm", 0.035), ("aten::silu", 0.03), ("aten::_log_softmax", 0.025),
        ("aten::add_", 0.02), ("aten::cat", 0.015), ("aten::index", 0.01), ("aten::_foreach_norm", 0.01),
    ]  # fmt: skip
    return [_op(rng, name, "op", share, ranks) for name, share in names]


def _kernels(rng, ranks):
    names = [
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
            0.34,
        ),
        (
            "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>",
            0.13,
        ),
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>",
            0.09,
        ),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0.08),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0.07),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
            0.05,
        ),
        ("triton_red_fused__log_softmax_nll_loss_12", 0.04),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 0.03),
    ]
    return [_op(rng, name, "kernel", share, ranks) for name, share in names]


def _op(rng, name, kind, share, ranks):
    seconds = share * 21 * ranks
    each = [
        s.ProcessTime(f"actor rank {r}", seconds / ranks * (0.95 + rng.random() * 0.1), 400, None)
        for r in range(min(ranks, 8))
    ]
    return s.Op(name, kind, rng.randrange(2_000, 90_000), seconds * 1.2, seconds, share, each)


def _sources(ranks, engines, per_host):
    found = [
        s.SourceInfo(
            "driver",
            "spans",
            "spans/rank-driver.000001.jsonl",
            None,
            "driver",
            None,
            "gpu-node-00",
            None,
            1204,
            310_112,
            "reference",
            0,
            0,
        )
    ]
    for rank in range(ranks):
        host = rank // per_host
        how, offset, error = (
            ("same-host", 0, 0)
            if host == 0
            else ("ping-pong", -412_000 * host + 90_000, 61_000 + 17_000 * host)
        )
        found.append(
            s.SourceInfo(
                f"actor rank {rank}",
                "rank",
                f"actor/rank-{rank}.trace.json.gz",
                "actor",
                rank,
                None,
                f"gpu-node-{host:02d}",
                "complete",
                310_000 + rank * 31,
                14_200_000,
                how,
                offset,
                error,
            )
        )
    for engine in range(engines):
        for worker in range(2):
            lost = engine == 1 and worker == 1
            found.append(
                s.SourceInfo(
                    f"rollout/{engine} worker {worker}",
                    "engine",
                    None if lost else f"rollout/replica-{engine}/rank-{worker}.trace.json.gz",
                    "rollout",
                    worker,
                    engine,
                    f"gpu-node-{8 + engine:02d}",
                    "lost" if lost else "complete",
                    0 if lost else 920_114,
                    None if lost else 41_000_000,
                    "calls",
                    1_200_000,
                    184_000,
                )
            )
    return found


def make_comparison():
    """Return the comparison of two steps of the same run, in which the tail of the rollout grew."""
    return s.Comparison(
        "grpo-7b-math step 12", "grpo-7b-math step 40",
        findings=[
            s.Finding("the step took 9.4 s longer (57.4 s → 66.8 s, +16 %)", "step", 9.4),
            s.Finding("rollout took 8.1 s longer: the tail grew from 11.2 s to 18.9 s", "tail", 8.1),
            s.Finding("update_actor is 0.4 s faster, within what equal ranks differ by", "region", None),
        ],
        changes=[
            s.Change("step", "step", 57.4, 66.8, None, True), s.Change("rollout", "role", 27.4, 35.5, 0.8, True), s.Change("rollout/0 tail", "rollout", 11.2, 18.9, 0.9, True),
            s.Change("actor / update_actor", "region", 19.2, 18.8, 0.5, False), s.Change("ref / compute_log_prob", "region", 5.0, 6.1, 0.3, True),
            s.Change("reward / math_verify", "region", 2.8, 2.1, None, True), s.Change("aten::mm", "op", 416.0, 421.0, 9.0, False), s.Change("aten::copy_", "op", 94.0, 61.0, 6.0, True),
        ],
        problems=[s.Problem("B", "rollout/1 is missing: its capture failed")],
    )  # fmt: skip
