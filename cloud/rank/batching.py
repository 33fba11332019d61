"""The continuous batch of one rank: transformers' manager, sized, seeded and made observable.

Sized: the KV cache holds `slots` requests of full context, and a step prefills at most a bounded
number of tokens, so that a long prompt delays running answers by a bounded time. Observable: `turns`
counts the loop's rounds, idle ones too; a loop that stands still is a hung group.

Must not know: requests of the wire, sockets.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from cloud.rank.sampling import RequestSettings, SamplingRunner

PAGE_TOKENS = 16
STEP_TOKENS = 256
# The scheduler keeps 15 % of the blocks free for running answers before it admits a prompt.
_SPARE = 1.25


class _Bell(threading.Event):
    """What the loop sleeps on when it has nothing to do.

    A follower does not sleep: it goes straight to the group's next collective and waits there, so
    that a new request on rank 0 starts at once instead of after the followers' naps.
    """

    def __init__(self, follower: bool) -> None:
        super().__init__()
        self._follower = follower
        self.idle_turns = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.idle_turns += 1
        return False if self._follower else super().wait(timeout)


class Batch:
    """One rank's running batch loop. Requests are added on rank 0 and reach the others by themselves."""

    def __init__(self, model: Any, slots: int, context_length: int, group_timeout_s: float) -> None:
        pages = math.ceil(context_length / PAGE_TOKENS) + 1
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=math.ceil(slots * pages * _SPARE) + 4,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=slots,
            return_logprobs=True,
            # One step at a time: a cancelled request is gone before the next one starts.
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            seed=0,
            cpu_group_timeout=group_timeout_s,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        self.manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)
        self._bell = _Bell(follower=not self.manager.is_tp_driver)
        self.manager._wake_up_loop = self._bell
        self.manager.logit_processor = RequestSettings()
        with torch.no_grad():
            self.manager.warmup()
        self.manager.batch_processor.model_runner = SamplingRunner(self.manager.batch_processor)

    def start(self) -> None:
        self.manager.start()

    @property
    def running(self) -> bool:
        return bool(self.manager.is_running())

    @property
    def fault(self) -> str:
        """What ended the loop; empty while it runs."""
        error = self.manager.background_thread_status.fatal_error
        return "" if error is None else str(error)

    @property
    def decode_steps(self) -> int:
        """Forward passes since the start."""
        return int(getattr(self.manager, "current_batch", 0))

    @property
    def turns(self) -> int:
        """Rounds of the loop since the start, idle ones included."""
        return self.decode_steps + self._bell.idle_turns

    @property
    def active(self) -> int:
        """Requests that hold a place in the batch."""
        return len(self.manager.batch_processor.scheduler.active_requests)

    @property
    def queued(self) -> int:
        """Requests that wait for one."""
        scheduler = self.manager.batch_processor.scheduler
        return len(scheduler.waiting_requests) + int(self.manager.input_queue.qsize())

    def forget(self, request_id: str, cancel: bool) -> None:
        """Drops a request's results. With `cancel` it also leaves the batch, before the next step."""
        if cancel:
            self.manager.cancel_request(request_id)
        router = self.manager.output_router
        with router._lock:
            router.result_handlers.pop(request_id, None)
        # Results of requests nobody waits for would pile up there.
        while not router.output_queue.empty():
            router.output_queue.get_nowait()
