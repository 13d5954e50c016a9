/* What Python can call of a Coordinator, with what it says of each. Used by core_coordinator.c's type. Invariant: signatures are those of
 * _core.pyi; a test compares them. */
#include "core_coordinator.h"

#define NAMED(name, function, doc) \
    { name, (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS, doc }

PyMethodDef sp_coordinator_methods[] = {
    {"all_reduce", sp_coordinator_all_reduce, METH_O,
     "all_reduce($self, tensor, /)\n--\n\nThe sum of every rank's tensor, by the path that this release takes: a Reduced.\n\n"
     "tensor: a contiguous torch tensor, NumPy array or anything with __dlpack__, of any shape, on this rank's device; bf16, "
     "fp16, "
     "fp32, and where the path takes it fp64, int8, int32, int64. Runs on the producer's current stream. Raises what SGLang "
     "raises; "
     "ProbeUnavailable where the path does not run here; TimeoutError and ProbeError with rank and phase."},
    SP_FAST("plan", sp_coordinator_plan, "plan($self, tensor, /)\n--\n\nWhat all_reduce would route for this tensor now."),
    SP_FAST("configure", sp_coordinator_configure,
            "configure($self, settings, release, facts, context, off, on, kernel, derived, /)\n--\n\nAll toggles at once."),
    {"register_path", sp_coordinator_register_path, METH_VARARGS,
     "register_path($self, path, implementation, /)\n--\n\nA path that stands in Python."},
    {"enter_capture", sp_coordinator_enter_capture, METH_NOARGS,
     "enter_capture($self, /)\n--\n\nEnters SGLang's graph_capture()."},
    {"exit_capture", sp_coordinator_exit_capture, METH_NOARGS,
     "exit_capture($self, /)\n--\n\nLeaves it; collective. Answers how many captured addresses were exchanged."},
    {"begin_graph", sp_coordinator_begin_graph, METH_VARARGS,
     "begin_graph($self, stream=0, /)\n--\n\nThe stream really captures from here on."},
    {"end_graph", sp_coordinator_end_graph, METH_VARARGS, "end_graph($self, stream=0, /)\n--\n\nEnds the capture: a Graph."},
    {"buffer", sp_coordinator_buffer, METH_VARARGS,
     "buffer($self, nbytes, window=False, /)\n--\n\nMemory of this device that peers can map: a Buffer. A window is collective."},
    {"wait", sp_coordinator_wait, METH_VARARGS,
     "wait($self, stream=0, /)\n--\n\nUntil everything on the stream is done; then compares what the ranks called."},
    {"barrier", sp_coordinator_barrier, METH_NOARGS, "barrier($self, /)\n--\n\nUntil every rank is here."},
    {"runs", sp_coordinator_runs, METH_NOARGS, "runs($self, /)\n--\n\nWhat runs each path here: ((text or '', in Python), ...)."},
    {"supports", sp_coordinator_supports, METH_VARARGS,
     "supports($self, path, kernel, dtype, nbytes, /)\n--\n\n'' or why the device cannot run it."},
    {"cost", sp_coordinator_cost, METH_VARARGS,
     "cost($self, tensor, rounds=20, /)\n--\n\nHost microseconds of one call: (through all_reduce, the path alone, the library "
     "alone or "
     "None). Collective; medians over rounds of 50 calls."},
    NAMED("enqueue", sp_coordinator_enqueue,
          "enqueue($self, tensor, calls=1, compute_us=0.0, stamp=0)\n--\n\nThe path that all_reduce would take now, `calls` "
          "times (1 "
          "to 10,000), without its Python layer: host microseconds of one call (its output and the path).\n\n"
          "Before each call the stream computes for compute_us, which is not counted. stamp: the first of five slots a call: "
          "before "
          "it, ENTER, MET and LEFT of a path that stamps (else 0), after it. While the stream captures, all of it is recorded. "
          "Every "
          "rank makes as many. Raises as all_reduce does; ValueError where nothing would be called."),
    NAMED("spin", sp_coordinator_spin,
          "spin($self, us, stream=0)\n--\n\nCompute that is only time, up to a second, on the stream. While it captures: "
          "recorded."),
    NAMED("hold", sp_coordinator_hold,
          "hold($self, stream=0)\n--\n\nWhat is enqueued after this begins at release(), so that the device never waits for the "
          "host; "
          "after 5 s by itself, and then the next wait fails. CPU ranks, whose calls are done when they return, hold nothing "
          "back."),
    {"release", sp_coordinator_release, METH_NOARGS,
     "release($self, /)\n--\n\nLets go what hold() held, if anything: from any thread. close() and a failure do it too."},
    NAMED(
        "mark", sp_coordinator_mark,
        "mark($self, which, stream=0)\n--\n\nThe beginning (0) or the end (1) of what elapsed() measures. A timed call or replay "
        "marks too."),
    {"elapsed", sp_coordinator_elapsed, METH_NOARGS,
     "elapsed($self, /)\n--\n\nMicroseconds on the device between the two marks; waits for the second."},
    NAMED(
        "stamp", sp_coordinator_stamp,
        "stamp($self, slot, stream=0)\n--\n\nThe device's clock into a slot (1 to 16,384) when the stream comes to it. While it "
        "captures: at each replay."),
    NAMED("stamps", sp_coordinator_stamps,
          "stamps($self, first, count)\n--\n\nStamps in ns of this rank's device clock, as a uint64 array; 0 where there is "
          "none. Wait "
          "for the stream first."),
    NAMED("clear_stamps", sp_coordinator_clear_stamps,
          "clear_stamps($self, first, count, stream=0)\n--\n\nThese slots hold 0 when the stream comes here."),
    {"clock", sp_coordinator_clock, METH_NOARGS,
     "clock($self, /)\n--\n\n(offsets, errors) of every rank's device clock in microseconds, by rank: its time minus its offset "
     "is "
     "rank 0's, within its error. Collective."},
    {"comm", sp_coordinator_comm, METH_NOARGS,
     "comm($self, /)\n--\n\nA capsule for _gpu's measuring functions, good until close()."},
    {"ran", sp_coordinator_ran, METH_O, "ran($self, path, /)\n--\n\nCalls of a path that the device counted as run."},
    {"describe", sp_coordinator_describe, METH_NOARGS, "describe($self, /)\n--\n\nWhere each rank stands, one sentence."},
    {"close", sp_coordinator_close, METH_NOARGS,
     "close($self, /)\n--\n\nLeaves the group; a closed one is refused from then on."},
    {NULL, NULL, 0, NULL},
};
