"""How a model looks at an image: plain data, saved with its weights."""

from dataclasses import dataclass

from gmmseg.bounds import SideOrNone, check_bounds


@dataclass(frozen=True)
class InferenceSettings:
    """Whole images or square windows, at what size; the same for validation, evaluation and prediction."""

    short_side: SideOrNone | None = None
    """Images are resized to this shorter side, keeping their aspect; predictions are of their own size."""
    window: SideOrNone | None = None
    """Side of the windows; None: the whole image."""
    stride: SideOrNone | None = None
    """How far apart windows are; None: three quarters of the window."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def override(
        self, short_side: int | None = None, window: int | None = None, stride: int | None = None
    ) -> "InferenceSettings":
        """These settings with what is given in place of them: None keeps a setting, 0 switches it off.

        Another window has a stride of its own. A stride that no window can have is refused.
        """
        if window is None:
            window, stride = self.window, self.stride if stride is None else stride
        short_side = self.short_side if short_side is None else short_side
        if stride and not window:
            raise ValueError("a window stride needs a window: give both, or only the window")
        if stride and window and stride > window:
            raise ValueError(f"window stride {stride} must be between 1 and the window size {window}")
        return InferenceSettings(short_side or None, window or None, stride or None)
