"""The verbs: one file and one public function each, written against the ports."""
