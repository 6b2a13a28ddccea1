// Plays a pair of answers: as a race on their measured clocks, or round by round as draft, verify and accept.

import { byId, calm } from "./dom.js";
import { fly } from "./flight.js";
import { Lane } from "./lane.js";
import { comfortable, duration, offer, racePaces, roundPaces, slowness, speedOf } from "./pace.js";
import { RoundPanel } from "./round_panel.js";
import { RoundStrip } from "./round_strip.js";
import { STEPS } from "./run.js";
import { WALK } from "./tree.js";

const LONGEST_FRAME = 100;

export class Player {
  /** `entered` is called when somebody looks into rounds. */
  constructor(entered) {
    this.entered = entered;
    this.panel = new RoundPanel();
    this.strip = new RoundStrip(byId("strip"));
    this.view = "race";
    this.pair = null;
    this.live = false;
    this.place = 0;
    this.step = "accept";
    this.progress = 1;
    /** Seconds of the race. */
    this.clock = 0;
    this.playing = false;
    this.lanes = [];
  }

  get run() {
    return this.pair.run;
  }

  get pace() {
    return byId("speed").value;
  }

  /** Seconds that the race takes. */
  get raceSeconds() {
    return Math.max(this.run.seconds, this.pair.plain?.seconds ?? 0);
  }

  /** Take up a pair, as it looks when it is over, or as far as its answers have come. */
  show(pair) {
    this.pause();
    this.pair = pair;
    this.live = pair.live;
    const picked = (run, place) => this.#pick(run, place);
    this.lanes = [new Lane(pair.run, laneTitle(pair), picked)];
    if (pair.plain) this.lanes.push(new Lane(pair.plain, "Plain decoding", picked));
    for (const lane of this.lanes) lane.grow();
    byId("lanes").replaceChildren(...this.lanes.map((lane) => lane.element));
    [this.clock, this.place, this.step, this.progress] = [this.raceSeconds, this.run.best, "accept", 1];
    this.look(this.live ? "race" : this.view);
    if (this.view === "race") this.lanes.forEach((lane) => lane.rewind());
  }

  /** An answer that is coming has grown: show its last round, unless somebody looks at another one. */
  follow() {
    for (const lane of this.lanes) lane.grow();
    this.refreshRounds();
    if (this.following) this.seek(this.run.rounds.length - 1, "accept", 1);
    else this.draw();
  }

  /** The answers have come: they stay as they stand. */
  finish() {
    this.live = this.following = false;
    this.clock = this.raceSeconds;
    for (const lane of this.lanes) lane.grow();
    this.refreshControls();
    this.draw();
    if (this.view === "race") this.lanes.forEach((lane) => lane.rewind());
  }

  /** Go to the round that brought most. */
  toBest() {
    this.seek(this.run.best, "accept", 1);
  }

  /** Look into the rounds: where the race is, or behind its end into the best one; while an answer comes, into its last. */
  inside() {
    if (!this.run.rounds.length) return;
    const over = this.view === "race" && this.atEnd;
    this.look("rounds");
    this.following = this.live;
    if (this.live) this.follow();
    else if (over) this.toBest();
    else this.seek(this.place, "accept", 1);
    byId("inside").scrollIntoView({ block: "nearest" });
    this.entered();
  }

  /** Play the race from its start. */
  race() {
    this.look("race");
    this.play();
  }

  /** Switch between rounds and race. */
  look(view) {
    this.pause();
    // Each view has its own usual pace.
    if (view !== this.view) byId("speed").value = "";
    this.view = view;
    byId("player").dataset.view = view;
    for (const name of ["rounds", "race"]) {
      byId(`view-${name}`).setAttribute("aria-pressed", String(name === view));
      for (const part of document.querySelectorAll(`[data-in='${name}']`)) part.hidden = name !== view;
    }
    if (this.pair) this.refreshControls();
    if (this.pair?.run.rounds.length) this.draw();
  }

  refreshControls() {
    const racing = this.view === "race";
    byId("player").dataset.live = this.live;
    offer(byId("speed"), racing ? racePaces(this.raceSeconds) : roundPaces(this.run), racing ? comfortable(this.raceSeconds) : "eye:1");
    byId("race-slider").max = Math.ceil(1000 * this.raceSeconds);
    this.refreshRounds();
  }

  refreshRounds() {
    const rounds = this.run.rounds.length;
    byId("round-slider").max = Math.max(1, rounds);
    byId("round-slider").disabled = rounds < 2;
    this.strip.show(this.run);
  }

  seek(place, step, progress) {
    this.place = Math.max(0, Math.min(place, this.run.rounds.length - 1));
    [this.step, this.progress] = [step, progress];
    this.draw();
  }

  seekClock(seconds) {
    this.clock = Math.max(0, Math.min(seconds, this.raceSeconds));
    // For the other view: the last round that was over by then.
    const round = Math.max(0, this.run.roundsBy(this.clock) - 1);
    [this.place, this.step, this.progress] = [round, "accept", 1];
    this.draw();
  }

  play() {
    if (this.playing || !this.pair || this.live) return;
    if (this.atEnd) {
      if (this.view === "race") this.seekClock(0);
      else this.seek(0, "draft", 0);
    }
    this.#play(true);
    let last = performance.now();
    const mine = (this.playback = {});
    const frame = (now) => {
      if (mine !== this.playback || !this.playing) return;
      // After a pause of the browser itself, play goes on where it was.
      this.advance(Math.min(LONGEST_FRAME, Math.max(0, now - last)));
      last = now;
      if (this.playing) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.playback = null;
    this.following = false;
    this.#play(false);
  }

  get atEnd() {
    if (this.view === "race") return this.clock >= this.raceSeconds;
    return this.place === this.run.rounds.length - 1 && this.step === "accept" && this.progress >= 1;
  }

  /** Play on for so many milliseconds. */
  advance(milliseconds) {
    if (this.view === "race") {
      this.seekClock(this.clock + milliseconds / 1000 / slowness(this.pace));
    } else {
      let left = milliseconds;
      while (left > 0 && !this.atEnd) {
        const whole = Math.max(1e-3, duration(this.pace, this.run, this.place, this.step));
        const used = Math.min(left, (1 - this.progress) * whole);
        this.#move(this.progress + used / whole);
        left -= used;
        if (this.progress >= 1 - 1e-9) {
          this.progress = 1;
          if (left > 0 && !this.atEnd) this.#enter(1, 0);
        }
      }
      this.draw();
    }
    if (this.atEnd) this.pause();
  }

  /** One step on or back, to its end. */
  turn(by) {
    this.pause();
    if (by > 0 && this.progress < 1) this.progress = 1;
    else if ((by > 0 && !this.atEnd) || (by < 0 && (this.place > 0 || this.step !== "draft"))) this.#enter(by, 1);
    else if (by < 0) this.progress = 0;
    this.draw();
  }

  draw() {
    const { run } = this;
    if (!run.rounds.length) {
      this.lanes.forEach((lane) => lane.reveal(0, 1));
      return;
    }
    const racing = this.view === "race";
    const still = calm() && !racing ? 1 : this.progress;
    const over = this.step === "accept" && still >= WALK;
    // Behind the last round both answers are whole, whichever was the faster.
    const whenever = this.live || (!racing && this.atEnd);
    const seconds = whenever ? Infinity : racing ? this.clock : this.#seconds(still);
    const whole = this.live ? this.pair.maxTokens : Math.max(...this.lanes.map((lane) => lane.run.tokens));
    const byRound = this.place + (over ? 1 : 0);
    this.lanes.forEach((lane) => {
      const rounds = racing || this.live || lane.run !== run ? lane.run.roundsBy(seconds) : byRound;
      lane.reveal(rounds, whole, whenever ? undefined : seconds);
      lane.mark(lane.run === run && !racing && over ? this.place : -1);
    });
    if (racing) {
      byId("race-slider").value = Math.round(1000 * this.clock);
      byId("race-told").textContent = raceTold(this);
    } else {
      this.panel.show(run, this.place);
      this.panel.pose(this.step, still);
      byId("round-slider").value = this.place + 1;
      byId("round-title").textContent = `Round ${this.place + 1} of ${run.rounds.length}`;
      this.strip.mark(this.place);
    }
    const player = byId("player");
    Object.assign(player.dataset, { round: this.place + 1, step: this.step, over });
  }

  /** Change the progress of a step; tokens fly where the walk along the path ends. */
  #move(progress) {
    const landing = this.step === "accept" && this.progress < WALK && progress >= WALK;
    this.progress = progress;
    if (!landing || calm() || this.pace.startsWith("measured")) return;
    this.draw();
    fly(this.panel.tree.said, this.lanes[0].tokensOf(this.place), speedOf(this.pace));
  }

  #enter(by, progress) {
    const at = 3 * this.place + STEPS.indexOf(this.step) + by;
    [this.place, this.step, this.progress] = [Math.floor(at / 3), STEPS[at % 3], progress];
  }

  /** The measured time at which the played moment was. */
  #seconds(progress) {
    const parts = this.run.parts(this.place);
    const at = STEPS.indexOf(this.step);
    const start = this.place ? this.run.endOf(this.place - 1) : 0;
    const before = parts.slice(0, at).reduce((sum, part) => sum + part, 0);
    return start + before + parts[at] * progress;
  }

  #pick(run, place) {
    this.pause();
    if (this.view === "race") this.look("rounds");
    this.entered();
    // A token of the plain answer stands for the one in its place.
    this.seek(run === this.run ? place : this.run.roundOf(place), "accept", 1);
  }

  #play(playing) {
    this.playing = playing;
    byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
    byId("play").dataset.playing = playing;
    byId("player").dataset.playing = playing;
    // What changes by itself is not read out.
    byId("round-told").setAttribute("aria-live", playing ? "off" : "polite");
  }
}

function laneTitle({ run, drafter }) {
  return `Guessing ahead (${run.drafter ?? drafter})`;
}

function raceTold(player) {
  const { run, pair, clock } = player;
  if (player.live || !run.stats || !pair.plain?.stats) return "";
  if (player.atEnd) return `Finished: ${run.seconds.toFixed(2)} s against ${pair.plain.seconds.toFixed(2)} s.`;
  const count = (each) => each.rounds.slice(0, each.roundsBy(clock)).reduce((sum, round) => sum + round.tokens.length, 0);
  return `After ${clock.toFixed(2)} s: ${count(run)} tokens guessing ahead, ${count(pair.plain)} plainly.`;
}
