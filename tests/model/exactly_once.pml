/* Why no element is used twice and none is lost: ledger, journal and adoption, for the model checker Spin.
 *
 * A unit is what is leased, made into one batch and used.  There are two workers, two trainers and a controller.  Spin
 * tries all interleavings of: control messages that come late, come twice, or are lost with a controller; a worker that
 * dies at any moment, whose batches under way still arrive or do not, or that is taken for lost and lives; a controller
 * that dies, also between the line in its journal and what follows from it.
 *
 * `make model` checks it, and that Spin finds each of the faults that -DFAULT_... plants.
 */

#ifndef UNITS
#define UNITS 2
#endif
#define WORKERS 2
#define TRAINERS 2
#define EVERY_UNIT ((1 << UNITS) - 1)
#define EVERY_TRAINER ((1 << TRAINERS) - 1)
#define NO_UNIT 255

#ifndef DEATHS
#define DEATHS 1  /* of the first worker: the other one is to do its work */
#endif
#ifndef SUSPICIONS
#define SUSPICIONS 1  /* of the same one, which lives and is taken for lost */
#endif
#ifndef CRASHES
#define CRASHES 1  /* processes of the controller that die */
#endif
#ifndef REPEATS
#define REPEATS 1  /* questions and reports that come again though nothing was lost */
#endif

#define BIT(n) (1 << (n))
#define TRAINER(n) BIT(WORKERS + (n))  /* beside workers, in one set */

/* Control messages.  A question and its answer bear a number: a question that comes again has the same answer. */
chan ask[WORKERS] = [1] of { byte };            /* number */
chan answer[WORKERS] = [1] of { byte, byte };   /* number, unit */
chan report[TRAINERS] = [1] of { byte, byte };  /* units received, workers settled */
chan orders[TRAINERS] = [1] of { byte };        /* workers lost */
/* Batches, from each worker to each trainer. */
chan stream[4] = [1] of { byte };
#define STREAM(worker, trainer) ((worker) * TRAINERS + (trainer))

/* The controller's state.  It is its journal as well: after a crash it is as it was behind the last event. */
byte queued = EVERY_UNIT, done;  /* units */
byte held[WORKERS];              /* units */
byte lost;                       /* workers */
byte settled[WORKERS];           /* trainers that have told all that they have of a lost worker */
byte answered[WORKERS];          /* number of the last question that has an answer, */
byte given[WORKERS];             /* and that answer */
byte wanted;                     /* workers that were to be started */

/* The world. */
bool dead;                       /* the first worker */
byte started;                    /* workers that have a process */
bool broken;                     /* the controller has died, and the next one has not come */
byte used[UNITS];
byte told_lost[TRAINERS];        /* workers of whose loss this process of the controller has told */
byte again;                      /* whose question or report is gone with a process of the controller: it comes again */
byte deaths = DEATHS, suspicions = SUSPICIONS, crashes = CRASHES, repeats = REPEATS;

#define finished (done == EVERY_UNIT)

/* A unit is in one place: queued, with one worker, or done. */
#define HELD (held[0] | held[1])
inline check_ledger() {
    assert((queued & done) == 0 && (HELD & (queued | done)) == 0);
    assert((held[0] & held[1]) == 0);
    assert((queued | done | HELD) == EVERY_UNIT)
}

#ifdef FAULT_GIVEN_OUT_AT_ONCE
#define IS_SETTLED(worker) (lost & BIT(worker))
#else
#define IS_SETTLED(worker) ((lost & BIT(worker)) && settled[worker] == EVERY_TRAINER)
#endif

inline take_back(worker) {
    if
    :: IS_SETTLED(worker) -> queued = queued | held[worker]; held[worker] = 0
    :: else
    fi
}

inline crash() {
    crashes--;
    broken = true
}

/* Behind the line in the journal: what follows is done, or the process dies before it is. */
inline reply_unit(worker) {
    if
    :: full(answer[worker]) -> answer[worker]?_, _; answer[worker]!answered[worker], given[worker]  /* an older one */
    :: empty(answer[worker]) -> answer[worker]!answered[worker], given[worker]
    :: crashes > 0 -> crash(); again = again | BIT(worker)
    fi
}

inline on_question(worker) {
    ask[worker]?number;
    if
    :: (lost & BIT(worker))  /* it is being ended */
#ifndef FAULT_NO_NUMBERS
    :: !(lost & BIT(worker)) && number == answered[worker] -> reply_unit(worker)
    :: !(lost & BIT(worker)) && number != answered[worker] ->
#else
    :: !(lost & BIT(worker)) ->
#endif
        unit = 0;
        do
        :: (queued & BIT(unit)) -> break
        :: else -> unit++
        od;
        queued = queued & ~BIT(unit);
        held[worker] = held[worker] | BIT(unit);
        answered[worker] = number;
        given[worker] = unit;
        check_ledger();
        reply_unit(worker)
    fi;
    number = 0;
    unit = 0
}

inline credit(worker) {
    done = done | (held[worker] & units);
    held[worker] = held[worker] & ~units
}

inline settle(worker, trainer) {
    if
    :: (workers & BIT(worker)) -> settled[worker] = settled[worker] | BIT(trainer)
    :: else
    fi;
    take_back(worker)
}

inline on_report(trainer) {
    report[trainer]?units, workers;
    credit(0); credit(1);
    settle(0, trainer); settle(1, trainer);
    check_ledger();
    units = 0;
    workers = 0;
    if
    :: true
    :: crashes > 0 -> crash()
    fi
}

inline tell(trainer) {
    orders[trainer]!lost;
    told_lost[trainer] = lost
}

inline on_silence() {
    lost = lost | BIT(0);
    take_back(0);
    check_ledger()
}

inline start(worker) {
    wanted = wanted | BIT(worker);
    if
    :: started = started | BIT(worker)
    :: crashes > 0 -> crash()
    fi
}

inline drop_question(worker) {
    if
    :: nempty(ask[worker]) -> ask[worker]?_; again = again | BIT(worker)
    :: empty(ask[worker])
    fi;
    if
    :: nempty(answer[worker]) -> answer[worker]?_, _; again = again | BIT(worker)
    :: empty(answer[worker])
    fi
}

inline drop_report(trainer) {
    if
    :: nempty(report[trainer]) -> report[trainer]?_, _; again = again | TRAINER(trainer)
    :: empty(report[trainer])
    fi;
    if
    :: nempty(orders[trainer]) -> orders[trainer]?_
    :: empty(orders[trainer])
    fi;
    told_lost[trainer] = 0
}

/* The next process: what was sent to the one before, and by it, is gone; the journal is there. */
inline restart() {
    drop_question(0); drop_question(1);
    drop_report(0); drop_report(1);
#ifdef FAULT_NO_JOURNAL
    queued = EVERY_UNIT; done = 0; held[0] = 0; held[1] = 0; answered[0] = 0; answered[1] = 0;
#endif
#ifndef FAULT_NO_ADOPTION
    started = started | wanted;
#endif
    broken = false
}

#define acts (!finished && !broken)

active proctype Controller() {
    byte number, unit, units, workers;
end:
    do
    :: atomic { finished -> break }
    :: atomic { !finished && broken -> restart() }
    :: atomic { acts && crashes > 0 -> crash() }
    :: atomic { acts && nempty(ask[0]) && (queued || lost & BIT(0) || ask[0]?[eval(answered[0])]) -> on_question(0) }
    :: atomic { acts && nempty(ask[1]) && (queued || lost & BIT(1) || ask[1]?[eval(answered[1])]) -> on_question(1) }
    :: atomic { acts && nempty(report[0]) -> on_report(0) }
    :: atomic { acts && nempty(report[1]) -> on_report(1) }
    :: atomic { acts && told_lost[0] != lost && empty(orders[0]) -> tell(0) }
    :: atomic { acts && told_lost[1] != lost && empty(orders[1]) -> tell(1) }
    :: atomic { acts && !(wanted & BIT(0)) -> start(0) }
    :: atomic { acts && !(wanted & BIT(1)) -> start(1) }
    :: atomic { acts && dead && !lost -> on_silence() }
    :: atomic { acts && suspicions > 0 && !lost -> suspicions--; on_silence() }
    od
}

#define idle (unit == NO_UNIT)

proctype Worker(byte me) {
    byte number = 1, unit = NO_UNIT, got, what;
    bool asked;
    (started & BIT(me)) || finished;
end:
    do
    :: atomic { finished -> break }
    :: atomic { !finished && deaths > 0 && me == 0 -> deaths--; dead = true; break }
    :: atomic { !finished && idle && !asked && empty(ask[me]) -> ask[me]!number; asked = true }
    :: atomic { !finished && repeats > 0 && asked && empty(ask[me]) -> repeats--; ask[me]!number }
    :: atomic { !finished && (again & BIT(me)) && empty(ask[me]) ->
        again = again & ~BIT(me);
        if
        :: asked -> ask[me]!number
        :: !asked
        fi }
    :: atomic { nempty(answer[me]) ->
        answer[me]?got, what;
        if
        :: got == number && idle -> unit = what; number++; asked = false
        :: else
        fi;
        got = 0; what = 0 }
    :: atomic { !idle && nfull(stream[STREAM(me, 0)]) -> stream[STREAM(me, 0)]!unit; unit = NO_UNIT }
    :: atomic { !idle && nfull(stream[STREAM(me, 1)]) -> stream[STREAM(me, 1)]!unit; unit = NO_UNIT }
    od
}

inline on_batch(worker) {
    stream[STREAM(worker, me)]?unit;
    if
#ifndef FAULT_NO_FENCE
    :: (fenced & BIT(worker))  /* it comes late: another worker may have its unit */
    :: !(fenced & BIT(worker)) ->
#else
    :: true ->
#endif
        assert(used[unit] == 0);
        used[unit]++;
        received = received | BIT(unit)
    fi;
    unit = 0
}

proctype Trainer(byte me) {
    byte received, fenced, told, unit;
    byte reported, settling;  /* what was told last */
end:
    do
    :: atomic { finished -> break }
    :: atomic { nempty(stream[STREAM(0, me)]) -> on_batch(0) }
    :: atomic { nempty(stream[STREAM(1, me)]) -> on_batch(1) }
    :: atomic { !finished && (reported != received || settling != told) && empty(report[me]) ->
        report[me]!received, told; reported = received; settling = told }
    :: atomic { !finished && repeats > 0 && empty(report[me]) -> repeats--; report[me]!received, told }
    :: atomic { !finished && (again & TRAINER(me)) && empty(report[me]) ->
        again = again & ~TRAINER(me);
        report[me]!received, told }
    :: atomic { nempty(orders[me]) ->
        orders[me]?told;
#ifndef FAULT_SETTLED_BEFORE_IT_IS_FENCED
        fenced = told
#endif
        }
#ifdef FAULT_SETTLED_BEFORE_IT_IS_FENCED
    :: fenced != told -> fenced = told
#endif
    od
}

init {
    atomic { run Worker(0); run Worker(1); run Trainer(0); run Trainer(1) };
    finished;
    byte each;
    for (each : 0 .. UNITS - 1) {
        assert(used[each] == 1)
    }
}
