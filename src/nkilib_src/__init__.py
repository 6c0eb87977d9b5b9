"""An import root of older releases, see nkilib.import_roots."""

from nkilib.import_roots import serve

serve(__name__)
