// The live view in a page.

import { Live } from "stepwell/live.js";

export default {
  template: '<div class="sp-host"></div>',
  props: { runs: Array },
  mounted() {
    const base = window.location.pathname.replace(/\/live\/?$/, ""); // not empty behind a proxy
    this.live = new Live(this.$el, base, this.runs);
  },
  unmounted() {
    this.live.destroy();
  },
};
