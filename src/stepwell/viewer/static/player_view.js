// The player in a page: data by HTTP, the place in the page's address, and a list to choose a second episode from.

import { Player, httpSource } from "stepwell/player.js";
import { Picker } from "stepwell/picker.js";

const WRITES_MS = 300; // between two changes of the address

export default {
  template: '<div class="sp-host"></div>',
  props: { store: Number, name: String, run: String, step: Number, beside: String, where: String, sort: String, desc: Boolean },
  mounted() {
    const base = window.location.pathname.replace(/\/s\/\d+\/play\/?$/, ""); // not empty behind a proxy
    const source = httpSource(base, this.store);
    const list = { where: this.where, sort: this.sort, desc: this.desc ? "1" : "" };
    const given = (key) => Object.fromEntries(Object.entries({ ...list, key }).filter(([, value]) => value !== ""));
    const player = new Player(this.$el, source, {
      fps: Number(sessionStorage.getItem("stepwell-fps")) || 30,
      near: (key) => source.json("near", given(key)),
      onBeside: () => this.choose(),
      onLink: () => this.copy(),
    });
    this.player = window.stepwellPlayer = player;
    this.picker = new Picker(this.$el, source, list, (key) => this.show(player.keys[0], key));
    player.addEventListener("rest", ({ detail }) => {
      document.title = `${detail.keys[0]} · ${this.name} · stepwell`;
      this.write(detail.step);
    });
    player.addEventListener("state", ({ detail }) => sessionStorage.setItem("stepwell-fps", String(detail.fps)));
    player.load(this.run, { step: this.step, beside: this.beside });
  },
  unmounted() {
    clearTimeout(this.timer);
    this.player.destroy();
  },
  methods: {
    // One episode beside the other, or alone again.
    choose() {
      if (this.player.keys.length > 1) this.show(this.player.keys[0], null);
      else this.picker.open(this.player.keys[0]);
    },
    async show(key, beside) {
      const { step, playing } = this.player;
      await this.player.load(key, { step, beside, play: playing });
    },
    // The address of what is on the screen; browsers refuse too many changes of it.
    write(step) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => history.replaceState(history.state, "", this.address(step)), WRITES_MS);
    },
    address(step) {
      const address = new URL(window.location.href);
      const [run, beside] = this.player.keys;
      const state = { run, step: String(step), beside: beside ?? "" };
      for (const [name, value] of Object.entries(state)) {
        if (value === "" || value === undefined) address.searchParams.delete(name);
        else address.searchParams.set(name, value);
      }
      return address.href;
    },
    async copy() {
      const address = this.address(this.player.step);
      try {
        await navigator.clipboard.writeText(address);
        this.player.tell("The link is in the clipboard.", 2000);
      } catch {
        this.player.tell(address, 10000); // browsers keep the clipboard to safe connections
      }
    },
  },
};
