"""Charts and pages of measurements and of trainings, in SVG and HTML, without a dependency."""
